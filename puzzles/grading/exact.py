"""Numbers that tell: sums of up to sixteen of them are exact in their dtype, in any order, and in no narrower one.

A whole number between 1 and 9999 says little. It survives 16 bits, `abs`, `clamp(min=0)` and a cast to int, so wrong
programs pass. What is dealt here has signs, fractions, large magnitudes, a zero that all ranks share, and an element
that is negative on all ranks, so that a sum is negative, too.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_STEPS_AND_LARGEST = {  # by dtype: numbers are multiples of the step, up to so many of them
    torch.float64: (2.0**-20, 1 << 40),
    torch.float32: (2.0**-4, 1 << 19),  # 19 bits, and 4 for a sum of sixteen: float32 has 24
    torch.float16: (2.0**-1, 1 << 4),
    torch.bfloat16: (2.0**-1, 1 << 4),  # 4 bits, and 4 for a sum of sixteen: bfloat16 has 8
    torch.int64: (1, 1 << 58),
    torch.int32: (1, 1 << 27),
    torch.int16: (1, 1 << 11),
}
_NARROW = (1, 1 << 3)  # what every other dtype holds, and a sum of sixteen of it
_FACTOR = (2.0**-6, 1 << 13)  # three such numbers multiplied have 39 bits: float64 has 53, float32 24
_ROOMY = 4  # elements from which on one of them can be zero, and another one negative


def summands(shape: Sequence[int], dtype: torch.dtype, everywhere: int, here: int) -> Tensor:
    """Numbers of any shape and dtype whose sums are exact.

    Args:
        everywhere: a seed that all ranks share: it says where a number is zero or negative on all of them.
        here: a seed of this rank's own, for everything else.
    """
    return _dealt(shape, dtype, _STEPS_AND_LARGEST.get(dtype, _NARROW), everywhere, here)


def factors(shape: Sequence[int], everywhere: int, here: int) -> Tensor:
    """Numbers in float64 of which sums of products of up to three are exact."""
    return _dealt(shape, torch.float64, _FACTOR, everywhere, here)


_TILE = 8_209  # numbers that are dealt; larger tensors repeat them, for to deal takes longer than to copy


def tiled(shape: Sequence[int], deal: Callable[[Sequence[int]], Tensor]) -> Tensor:
    """What `deal` gives for a shape; for one of many elements, what it gives for fewer of them, again and again."""
    numel = math.prod(shape)
    if numel <= _TILE:
        return deal(shape)
    return deal([_TILE]).repeat(-(-numel // _TILE))[:numel].view(tuple(shape))


def _dealt(shape: Sequence[int], dtype: torch.dtype, scale: tuple[float, int], everywhere: int, here: int) -> Tensor:
    numel, (step, largest) = math.prod(shape), scale
    if numel > _TILE:
        return tiled(shape, lambda few: _dealt(few, dtype, scale, everywhere, here))
    shared, own = (torch.Generator().manual_seed(seed) for seed in (everywhere, here))
    magnitudes = torch.randint(1, largest, (numel,), generator=own)
    if dtype in (torch.bool, torch.uint8):
        return magnitudes.remainder(2 if dtype is torch.bool else largest).to(dtype).view(tuple(shape))
    signs = torch.randint(0, 2, (numel,), generator=own) * 2 - 1
    of_all = torch.randint(0, 4, (numel,), generator=shared)  # 0: negative on all ranks, 1: positive, else as it comes
    signs = torch.where(of_all < 2, of_all * 2 - 1, signs)
    values = magnitudes * signs
    if numel >= _ROOMY:
        zero, negative = torch.randperm(numel, generator=shared)[:2].tolist()
        values[negative] = -magnitudes[negative]
        values[zero] = 0
    values = values.to(dtype) * step if dtype.is_floating_point else values.to(dtype)
    if numel >= _ROOMY and dtype.is_floating_point:
        values[zero] = -0.0 if torch.randint(0, 2, (), generator=shared) else 0.0
    return values.view(tuple(shape))
