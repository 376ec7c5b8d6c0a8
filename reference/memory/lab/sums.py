"""What a long sum in few bits loses, and three ways not to lose it.

A float of p bits cannot hold 2^p + 1: in bf16 (p = 8) 256 + 1 rounds to 256, and a running sum of ones stays there
forever. Nothing warns. Gradients that are added up over micro-batches, and weights with small updates, are such sums.

| way                 | bytes of the accumulator | error after n terms     | source                              |
|---------------------|--------------------------|-------------------------|-------------------------------------|
| in bf16             | 2                        | stalls                  |                                     |
| in fp32             | 4                        | as fp32                 | Micikevicius et al. 2018            |
| bf16, compensated   | 2 + 2                    | 2 roundings, n << 2^16  | Kahan 1965                          |
| bf16, at random     | 2                        | right on average        | Gupta et al. 2015; Zamirai et al. 2020 |

Of equal terms a compensated sum stalls, too, when there are 2^16 of them. Each function returns every partial sum, to
look at.
"""

import torch
from torch import Tensor


def running_sum(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Add one value after the other, rounding to `dtype` each time: [n, ...] -> all n partial sums."""
    total, sums = torch.zeros_like(values[0], dtype=dtype), []
    for value in values.to(dtype):
        total = total + value
        sums.append(total)
    return torch.stack(sums)


def kahan_sum(values: Tensor, dtype: torch.dtype) -> Tensor:
    """As `running_sum`, but what rounding cuts off is carried over to the next addition (Kahan 1965)."""
    total = carried = torch.zeros_like(values[0], dtype=dtype)
    sums = []
    for value in values.to(dtype):
        value = value + carried
        before, total = total, total + value
        carried = value - (total - before)  # what of `value` has not arrived
        sums.append(total)
    return torch.stack(sums)


def stochastic_sum(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """As `running_sum` in bf16, but rounded up or down at random: each partial sum is right on average."""
    total, sums = torch.zeros_like(values[0], dtype=torch.bfloat16), []
    for value in values.float():
        total = stochastic_round(total.float() + value, generator)
        sums.append(total)
    return torch.stack(sums)


def stochastic_round(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Round fp32 to one of the two nearest bf16 numbers, the nearer the likelier, so that the mean is `x`.

    bf16 is the upper half of fp32's bits. A random lower half is added, and carries with just the right chance; what
    is left of the lower half is cut off. Gupta et al. 2015, "Deep learning with limited numerical precision".

    Args:
        x: float32, finite.
    """
    noise = torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32, device=x.device)
    return ((x.contiguous().view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).bfloat16()
