"""The norm of all gradients together, and clipping by it.

The norm of a vector in pieces is the root of the sum of the squares of its pieces: so ranks that hold shards of the
gradient exchange one number, whatever the model's size. Clipping each shard by its own norm would scale shards by
different factors, and change the gradient's direction.

Pascanu, Mikolov & Bengio 2013, "On the difficulty of training recurrent neural networks", algorithm 1.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.dtypes import accumulator
from reference.errors import BadInput

EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_: no division by zero where all gradients are zero


def gradient_norm(
    gradients: Iterable[Tensor | None], shard_groups: Iterable[ProcessGroup] = (), device: torch.device | None = None
) -> Tensor:
    """The Euclidean norm of all gradients, as if they were one vector.

    Squares of what is stored in less than four bytes are added up in float32, else in the dtype that is there; the
    sums of the pieces, in float64. Nothing waits for the device.

    Args:
        gradients: of what this rank updates, of any shapes. None, for an unused parameter, counts zero.
        shard_groups: axes along which the gradients are split: 8 bytes in an all-reduce over each. None of them
            where every rank has all gradients.
        device: where the number is added up and travels; that of the gradients by default. Name it where a rank of
            GPUs may have no gradient at all.

    Returns:
        A float64 scalar, the same on every rank.
    """
    known = [gradient for gradient in gradients if gradient is not None]
    device = device or (known[0].device if known else torch.device("cpu"))
    norms = [torch.linalg.vector_norm(gradient, dtype=accumulator(gradient.dtype)) for gradient in known]
    square = torch.zeros((), dtype=torch.float64, device=device)
    if norms:
        square += torch.stack([norm.to(device, torch.float64) for norm in norms]).square().sum()
    for group in shard_groups:
        dist.all_reduce(square, group=group)
    return square.sqrt()


@torch.no_grad()
def clip(gradients: Iterable[Tensor | None], norm: Tensor, limit: float) -> None:
    """Scale all gradients down, in place, so that together they are no longer than `limit`.

    Every rank must come with the same `norm`: that of the whole gradient, not of its own part. A norm of NaN makes NaN
    of all gradients, an infinite one makes NaN of what is infinite and zero of the rest. Skip the step then.

    Args:
        gradients: as for `gradient_norm`.
        norm: what `gradient_norm` returned.
        limit: the longest that they may be.

    Raises:
        BadInput: for a negative limit, which would turn the gradients round.
    """
    if not limit >= 0:
        raise BadInput(f"gradients are clipped to a norm of 0 or more, not {limit}")
    factor = (limit / (norm + EPSILON)).clamp(max=1.0)
    for gradient in gradients:
        if gradient is not None:
            gradient.mul_(factor.to(gradient.device))
