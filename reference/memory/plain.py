"""Mixed precision and offload, each as one step in one function.

| function       | what it does                                            | engine         |
|----------------|---------------------------------------------------------|----------------|
| update_masters | learns in a float32 copy of 16-bit weights              | `precision`    |
| scaled_step    | scales the loss so that small fp16 gradients survive    | `loss_scaling` |
| offloaded_adam | keeps Adam's moments outside the device, but for a pair | `offload`      |

An update is about a thousandth of its weight. bf16 keeps 8 significant bits: to add less than a 512th changes nothing.
So small steps add up in a float32 copy. Gradients come times the loss's scale, and are divided by it in float32, since
what the scale has saved from underflow would underflow in 16 bits.

fp16 ends at 65,504 and begins at 6e-8. The scale doubles after some good steps; when a gradient overflows, the step is
skipped and the scale is halved. Where each rank has a slice of the gradients, one rank sees the overflow: if it alone
skipped, its slice would stay a step behind.

Two moments in float32 are 8 of the 16 bytes that a parameter costs. On the host, fetched one parameter at a time, they
take twice the largest parameter of the device's memory, and 16 bytes a parameter over the bus at each step.

Micikevicius et al. 2018, "Mixed precision training"; the rule for the scale is that of NVIDIA's apex.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def update_masters(
    working: Sequence[Tensor],
    gradients: Sequence[Tensor],
    masters: Sequence[Tensor],
    scale: float,
    max_norm: float,
    learning_rate: float,
) -> Tensor:
    """One step of gradient descent, clipped, in place: on the masters, and from there to the working weights.

    Args:
        working: 16-bit weights.
        gradients: of the loss times `scale`, in the dtype and the shapes of `working`.
        masters: float32, of the same shapes.
        scale: of the loss.
        max_norm: where the norm of all gradients together is larger, they are scaled down to it.
        learning_rate: what a gradient is multiplied by.

    Returns: the norm of all gradients before clipping, without the scale; a float32 scalar.
    """
    norm = torch.stack([(gradient.float() / scale).norm() for gradient in gradients]).norm()
    clipping = (max_norm / norm).clamp(max=1.0)
    for weight, gradient, master in zip(working, gradients, masters, strict=True):
        master -= learning_rate * clipping * (gradient.float() / scale)
        weight.copy_(master)
    return norm


def scaled_step(
    masters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    scale: float,
    good_steps: int,
    interval: int,
    learning_rate: float,
    group: ProcessGroup,
) -> tuple[float, int]:
    """Take one step of gradient descent on this rank's slice, in place, or skip it; on all ranks alike.

    Args:
        masters: float32, this rank's slice of the weights.
        gradients: float16, of the loss times `scale`, of the same shapes. Any of them may hold inf or NaN.
        scale: what the loss was multiplied by; the same on every rank.
        good_steps: taken since the scale last changed.
        interval: the scale doubles after so many good steps in a row.
        learning_rate: what a gradient is multiplied by.
        group: n ranks.

    Returns: the scale and the good steps to continue with.
    """
    finite = all(gradient.isfinite().all() for gradient in gradients)
    overflow = torch.tensor(float(not finite), device=gradients[0].device)
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group)
    if overflow:
        return scale / 2, 0
    for master, gradient in zip(masters, gradients, strict=True):
        master -= learning_rate * (gradient.float() / scale)
    return (scale * 2, 0) if good_steps + 1 == interval else (scale, good_steps + 1)


def offloaded_adam(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    fetch: Callable[[str], Tensor],
    store: Callable[[str, Tensor], None],
    step: int,
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """One step of Adam (Kingma & Ba 2015), in place.

    Args:
        parameters: float32 or float64.
        gradients: of the same shapes and dtypes.
        fetch: gives the moments of parameter i by their names, "m{i}" and "v{i}"; zeros before the first step.
        store: takes them back: `Host.fetch` and `Host.store`, for example.
        step: the number of this step; the first is 1.
    """
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        m = fetch(f"m{i}").mul_(beta1).add_(gradient, alpha=1 - beta1)
        v = fetch(f"v{i}").mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        store(f"m{i}", m)
        store(f"v{i}", v)
        root = v.div_(1 - beta2**step).sqrt_().add_(epsilon)
        parameter.addcdiv_(m, root, value=-learning_rate / (1 - beta1**step))
