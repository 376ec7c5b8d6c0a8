"""Numbers of 4 and 8 bits: which there are, how one rounds to them, and how they lie in bytes.

| element | bits | numbers                          | largest | step near x                       |
|---------|------|----------------------------------|---------|-----------------------------------|
| INT8    | 8    | -127, ..., 127                   | 127     | 1                                 |
| INT4    | 4    | -7, ..., 7                       | 7       | 1                                 |
| E4M3    | 8    | ± 1.mmm · 2^e, e from -6 to 8    | 448     | 2^(e-3), and 2^-9 near zero       |
| E5M2    | 8    | ± 1.mm · 2^e, e from -14 to 15   | 57,344  | 2^(e-2), and 2^-16 near zero      |
| E2M1    | 4    | ± 1.m · 2^e, e from 0 to 2       | 6       | 2^(e-1), and 1/2 near zero        |

All of them round alike: divide by the step near x, round to an integer, multiply again. Integers lie evenly, so they
are best where the largest number is not much larger than the others; floating point is as good for small numbers as
for large ones.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv 2209.05433; OCP Microscaling Formats (MX)
Specification 1.0, 2023.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Element:
    """Numbers that fit in some bits.

    Attributes:
        bits: of each, 8 or 4. Two of 4 share a byte, the first in its lower half.
        largest: number.
        fraction: bits after the point; None for integers.
        smallest_exponent: of numbers that begin with 1; below, the step stays what it is there.
        dtype: of torch that has the same numbers, if there is one.
    """

    bits: int
    largest: float
    fraction: int | None = None
    smallest_exponent: int = 0
    dtype: torch.dtype | None = None

    def step(self, x: Tensor) -> Tensor | float:
        """The distance between the two numbers that enclose x, which is in float32."""
        if self.fraction is None:
            return 1.0
        exponent = torch.frexp(x).exponent.sub_(1).clamp_min_(self.smallest_exponent)  # x = ± 1.mmm · 2^exponent
        return power_of_two(exponent - self.fraction)

    def round(self, x: Tensor, seed: int | None = None) -> Tensor:
        """The number nearest to each of x, of two the even one; what is larger than the largest becomes the largest.

        Args:
            x: any finite numbers, in float32.
            seed: round up or down by chance, right on average: see `chance`. NaN stays NaN.
        """
        step = self.step(x)
        steps = x / step
        if seed is None:
            rounded = steps.round()
        else:
            below = steps.floor()  # steps + chance may be rounded to the next integer, and steps - below is not
            rounded = below + (steps - below + chance(x.shape, seed)).floor()
        return (rounded * step).clamp_(-self.largest, self.largest)

    def round_up(self, x: Tensor) -> Tensor:
        """The smallest number that is x or more, or else the largest that there is."""
        step = self.step(x)
        return ((x / step).ceil() * step).clamp_(-self.largest, self.largest)

    def to_bytes(self, values: Tensor) -> Tensor:
        """Bytes of numbers that `round` gave: [..., n] -> [..., n], or half of n, rounded up.

        In 4 bits zero has no sign, and NaN, whose scale says what it is, becomes zero.
        """
        if self.bits == 8:
            return values.to(self.dtype).view(torch.uint8)
        codes = self._codes(values)
        if codes.shape[-1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        return codes[..., ::2] | (codes[..., 1::2] << 4)

    def from_bytes(self, payload: Tensor, numel: int) -> Tensor:
        """The n numbers of each row, in float32: the reverse of `to_bytes`."""
        if self.bits == 8:
            return payload.view(self.dtype).float()
        halves = torch.stack((payload & 15, payload >> 4), -1).flatten(-2)[..., :numel]
        return _TABLES[self.fraction].to(payload.device)[halves.int()]

    def _codes(self, values: Tensor) -> Tensor:
        """Of 4 bits: integers in two's complement; E2M1 as its sign and its place among the eight that there are."""
        if self.fraction is None:
            return values.to(torch.int8).view(torch.uint8) & 15
        place = torch.bucketize(values.nan_to_num().abs(), _E2M1.to(values.device))
        return (place | ((values < 0).long() << 3)).to(torch.uint8)


INT8 = Element(8, 127.0, dtype=torch.int8)
INT4 = Element(4, 7.0)
E4M3 = Element(8, 448.0, 3, -6, torch.float8_e4m3fn)
E5M2 = Element(8, 57344.0, 2, -14, torch.float8_e5m2)
E2M1 = Element(4, 6.0, 1, 0)

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_TABLES = {None: torch.tensor([*range(8), *range(-8, 0)]).float(), 1: torch.cat((_E2M1, -_E2M1))}
"""The 16 numbers of 4 bits, by the bits of their fraction."""


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float32, exactly: of exponents from -126 to 127 in int32."""
    return ((exponent + 127) << 23).view(torch.float32)


def chance(shape: Sequence[int], seed: int) -> Tensor:
    """Numbers from 0 to below 1, in float32, each made of the seed and of its place alone: each rank can make them.

    A hash of 32 bits (the finaliser of MurmurHash3, Appleby 2011); its upper 24 bits are what float32 can hold.
    """
    x = torch.arange(math.prod(shape), dtype=torch.int64) + (seed * 0x9E3779B9 & _MASK) & _MASK
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * factor & _MASK
    return ((x ^ (x >> 16)) >> 8).float().mul_(2.0**-24).view(shape)
