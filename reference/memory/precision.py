"""Mixed precision: compute in few bits, remember in many (Micikevicius et al. 2018, "Mixed precision training").

This is `plain.update_masters` with: any optimizer, gradients that add up over micro-batches, and a table of dtypes.

| name | compute | gradients | master | loss scaling | bytes for each parameter, with Adam |
|------|---------|-----------|--------|--------------|-------------------------------------|
| fp64 | 8       | 8         | itself | no           | 8 + 8 + 16 = 32                     |
| fp32 | 4       | 4         | itself | no           | 4 + 4 + 8 = 16                      |
| tf32 | 4       | 4         | itself | no           | 4 + 4 + 8 = 16                      |
| bf16 | 2       | 4         | 4      | no           | 2 + 4 + 4 + 8 = 18                  |
| fp16 | 2       | 4         | 4      | dynamic      | 2 + 4 + 4 + 8 = 18                  |

and bf16-stochastic: bf16 whose weights have no other copy, 2 + 4 + 8 = 14, and with moments of 8 bits 8.

Matrix products of 16 bits are fast, and activations take half of the room. Sums are another matter: what is added to a
number more than 512 times as large vanishes in bf16, which keeps 8 bits; at a power of two 256 times is enough. An
update is about a thousandth of its weight, and one micro-batch's gradient a K-th of the sum: both would be lost, a bit
at a time and without any error (see `lab.sums`). So the optimizer updates a master copy of each weight in fp32, and
gradients are added up in fp32. Or it rounds what it has updated up or down by chance, so that the mean is right, and no
copy is kept: see `reference.compression.by_chance`.

fp16 has a second trouble: it ends at 6e-8 below and at 65504 above, and many gradients are smaller than that. See
`loss_scaling`. bf16 reaches as far as fp32, which is why it won.

tf32 is fp32 whose matrix products see 10 of 23 bits of a mantissa, on GPUs that can (NVIDIA's, from 2020 on): on an
H100 495 instead of 67 TFLOP/s, by its data sheet. All else is fp32. On a CPU it changes nothing, or little.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from reference.choices import PrecisionName
from reference.dtypes import give_gradient


@dataclass(frozen=True)
class Precision:
    """In which dtypes a model is trained."""

    compute: torch.dtype  # of working parameters and activations
    gradients: torch.dtype  # in which gradients are added up and travel
    master: torch.dtype  # of what the optimizer updates, and of its state
    scaled: bool = False  # the loss is scaled up before backward, as much as gradients in `compute` can take
    tf32: bool = False  # products of float32 may see 10 bits of a mantissa

    @property
    def by_chance(self) -> bool:
        """Whether an update must round by chance: masters have so few bits that it would be lost."""
        return self.master is torch.bfloat16

    @contextmanager
    def products(self) -> Iterator[None]:
        """Around whatever multiplies matrices. torch has one switch for the process, which is put back after it."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        PrecisionName.FP32: Precision(torch.float32, torch.float32, torch.float32),
        PrecisionName.TF32: Precision(torch.float32, torch.float32, torch.float32, tf32=True),
        PrecisionName.BF16: Precision(torch.bfloat16, torch.float32, torch.float32),
        PrecisionName.BF16_STOCHASTIC: Precision(torch.bfloat16, torch.float32, torch.bfloat16),
        PrecisionName.FP16: Precision(torch.float16, torch.float32, torch.float32, scaled=True),
        PrecisionName.FP64: Precision(torch.float64, torch.float64, torch.float64),  # for exact tests
    }
)


class MasterWeights:
    """Exact copies of low-precision parameters, and exact sums of their gradients, in one process.

        loss.backward()         any number of times: gradients add up in `precision.gradients`
        weights.collect()       masters have the sums as their `.grad`
        optimizer.step()        over weights.masters
        weights.publish()       the model computes with the masters, rounded

    A gradient is added to its sum as soon as backward has made it, and is then forgotten: at no time are there two of a
    parameter for longer than that takes. In several processes the forms of data parallelism do all this on buckets.

    Args:
        parameters: as exact as they are known. They are rounded to `precision.compute` here, after the copy; those that
            are frozen have no master, and integers among them stay as they are.
        precision: one with masters of their own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], precision: Precision) -> None:
        self._dtype = precision.gradients
        self._master: dict[nn.Parameter, nn.Parameter] = {}
        self._sum: dict[nn.Parameter, Tensor] = {}
        for parameter in dict.fromkeys(parameters):
            exact = parameter.detach()
            if parameter.is_floating_point():
                parameter.data = exact.to(precision.compute)
            if parameter.requires_grad:
                self._master[parameter] = nn.Parameter(exact.to(precision.master, copy=True))
                parameter.register_post_accumulate_grad_hook(partial(_add, weakref.ref(self)))

    @property
    def masters(self) -> list[nn.Parameter]:
        """What the optimizer updates, in the order of the parameters."""
        return list(self._master.values())

    def collect(self) -> None:
        """Hand each master its gradient; None for an unused parameter."""
        for parameter, master in self._master.items():
            total = self._sum.pop(parameter, None)
            give_gradient(master, total)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters to the working parameters."""
        for parameter, master in self._master.items():
            parameter.copy_(master)

    def take(self, parameter: nn.Parameter) -> None:
        """Move a parameter's gradient into its sum."""
        if parameter in self._sum:
            self._sum[parameter] += parameter.grad
        else:
            self._sum[parameter] = parameter.grad.to(self._dtype)
        parameter.grad = None


def _add(weights: "weakref.ref[MasterWeights]", parameter: nn.Parameter) -> None:
    """A hook. Weak, since the garbage collector can't look into autograd: masters would live as long as the model."""
    if (found := weights()) is not None:
        found.take(parameter)
