"""Low precision in puzzles: one scale for what lies on several ranks, a scale from the past, gradients past a step."""

from collections import deque
from math import frexp

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def fp8_scales(shards: list[Tensor], group: ProcessGroup) -> list[Tensor]:
    """The scale of each matrix of which every rank has a shard: the least power of two under which fp8 has room for it.

    Args:
        shards: of each matrix, this rank's; some may be empty.
        group: the ranks that share the matrices.

    Returns:
        Of each matrix, a scalar.

    `reference.compression.gathered`.
    """
    largest = torch.stack([shard.abs().amax() if shard.numel() else shard.new_zeros(()) for shard in shards])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    mantissa, exponent = torch.frexp(largest / 448)
    scales = torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
    return list(torch.where(largest > 0, scales, 1.0))


def delayed_scales(largest: list[float], steps: int, margin: int) -> list[tuple[int, bool]]:
    """By step, the exponent of the scale that the steps before it give, and whether a number overflows.

    Args:
        largest: number of each step, in absolute value; above 0.
        steps: before the present one, that are remembered.
        margin: powers of two that are left free.

    Returns:
        Of each step (exponent, overflows).
    """
    found, window = [], deque()  # of (step, largest), the largest first
    for step, now in enumerate(largest):
        known = window[0][1] if window else now
        mantissa, exponent = frexp(known / 448)
        exponent += margin - (mantissa == 0.5)
        found.append((exponent, now > 448 * 2.0**exponent))
        while window and window[-1][1] <= now:
            window.pop()
        window.append((step, now))
        if window[0][0] <= step - steps:
            window.popleft()
    return found


def straight_through(x: Tensor, scale: float, largest: int) -> Tensor:
    """`x` rounded to whole multiples of `scale`, and the gradient as if it were not; none where it is cut off.

    Args:
        x: of any shape.
        scale: between two neighbours.
        largest: multiple, and with a minus the smallest.

    Bengio et al. 2013, "Estimating or propagating gradients through stochastic neurons" (1308.3432).
    """
    inside = x.clamp(-largest * scale, largest * scale)
    return inside + ((inside / scale).round() * scale - inside).detach()
