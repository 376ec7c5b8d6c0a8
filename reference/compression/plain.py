"""Quantisation in blocks, and sums of what was quantised: a gradient in 8 or 4 bits instead of 32.

A block of numbers x shares a scale s = max|x| / q, and each number is sent as the nearest integer to x / s, which lies
between -q and q: q is 127 in 8 bits, 7 in 4. What arrives is off by s/2 at most, max|x| / 2q. A large number spoils
those of its own block alone, so blocks are short; a scale of 4 bytes for each of 256 numbers is 1/8 bit a number.

Integers of different scales do not add up. So a sum is made of what was dequantised, and each number should be
quantised once: a reduce-scatter in a ring rounds partial sums n-1 times, one by all-to-all rounds each
rank's numbers once, and sends as much.

Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861; Wang et al. 2023, "ZeRO++",
arXiv 2306.10209.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

TINY = torch.finfo(torch.float32).tiny  # the smallest number whose reciprocal is finite


def quantise(x: Tensor, block: int, largest: int) -> tuple[Tensor, Tensor]:
    """Integers from -largest to largest, and a scale for each block.

    Args:
        x: [n], where `block` divides n, in float32.
        block: numbers that share a scale.
        largest: q, 127 at most.

    Returns:
        [n] in int8, and [n / block] in float32. The scale of a block that has NaN or infinity is NaN.
    """
    blocks = x.view(-1, block)
    scales = (blocks.abs().amax(1) / largest).clamp_min(TINY)  # of zeros, too: they are divided by it
    scales[~scales.isfinite()] = torch.nan
    return (blocks / scales[:, None]).round().nan_to_num().to(torch.int8).view(-1), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers again, [n] in float32. Arguments as `quantise` returns them."""
    return (codes.view(len(scales), -1) * scales[:, None]).view(-1)


def stochastic_round(x: Tensor, chance: Tensor) -> Tensor:
    """Each number rounded up as often as it lies near the integer above: right on average.

    Args:
        x: any numbers.
        chance: of the same shape, equally distributed from 0 to below 1.
    """
    below = x.floor()  # x + chance may be rounded to the next integer, where x is large, and x - below is not
    return below + (x - below + chance).floor()


def reduce_scatter_once(x: Tensor, block: int, largest: int, group: ProcessGroup) -> Tensor:
    """The sum of this rank's chunk of all ranks' `x`: each rank's numbers are quantised once, before they travel.

    Args:
        x: [n·m], where `block` divides m, on each of n ranks.
        block, largest: as for `quantise`.
        group: n ranks.

    Returns:
        [m], this rank's chunk of the sum.
    """
    codes, scales = quantise(x, block, largest)
    all_codes, all_scales = torch.empty_like(codes), torch.empty_like(scales)
    dist.all_to_all_single(all_codes, codes, group=group)
    dist.all_to_all_single(all_scales, scales, group=group)
    return dequantise(all_codes, all_scales).view(group.size(), -1).sum(0)
