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


def adam_8_bit(
    parameters: Tensor,
    gradient: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    rate: float,
    step: int,
) -> None:
    """One step of Adam whose moments are kept in 8 bits, block by block; in place on all but the gradient.

    Args:
        parameters, gradient: flat, a whole number of blocks.
        first: codes in int8 of m, one for each parameter, and a scale for each block: m = code · scale.
        second: the same of the root of v.
        rate: of learning.
        step: counted from 1.

    Dettmers et al. 2022, "8-bit optimizers via block-wise quantization" (2110.02861).
    """
    blocks = len(first[1])
    views = (x.view(blocks, -1) for x in (parameters, gradient, first[0], second[0]))
    for number, (p, g, m_codes, r_codes) in enumerate(zip(*views, strict=True)):
        m = 0.9 * (m_codes * first[1][number]) + 0.1 * g
        v = 0.99 * (r_codes * second[1][number]).square() + 0.01 * g.square()
        p -= rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
        for values, (codes, scales) in ((m, (m_codes, first[1])), (v.sqrt_(), (r_codes, second[1]))):
            scales[number] = values.abs().amax() / 127
            codes.copy_((values / scales[number].clamp(min=1e-30)).round())
