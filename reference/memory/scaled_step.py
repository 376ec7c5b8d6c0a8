"""One step with dynamic loss scaling, in one function, on ranks that must agree whether to take it.

fp16 ends at 65,504 and begins at 6e-8. The loss is multiplied by a scale, so that small gradients do not vanish, and
the scale is as large as it can be: it doubles after some good steps, and when a gradient overflows, the step is
skipped and the scale is halved. Micikevicius et al. 2018, "Mixed precision training", scale by a constant; the rule is
that of NVIDIA's tools (apex).

Where each rank has a slice of the gradients, one rank sees the overflow and the others do not. If it alone skipped,
its slice would be a step behind for ever. For any optimizer, see `reference.memory.loss_scaling`.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


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

    Returns: the scale and the good steps to go on with.
    """
    finite = all(gradient.isfinite().all() for gradient in gradients)
    overflow = torch.tensor(float(not finite), device=gradients[0].device)
    dist.all_reduce(overflow, dist.ReduceOp.MAX, group)
    if overflow:
        return scale / 2, 0
    for master, gradient in zip(masters, gradients, strict=True):
        master -= learning_rate * (gradient.float() / scale)
    return (scale * 2, 0) if good_steps + 1 == interval else (scale, good_steps + 1)
