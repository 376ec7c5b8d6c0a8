"""Formats: n numbers in, so many bytes out, and about the same numbers back.

This is `plain.quantise` with: any length, rows that are quantised each by itself, five kinds of numbers
(`elements`), three kinds of scales, rounding by chance, a bound of the error, and codes and scales in one tensor of
bytes, which is what travels.

| format           | numbers | scale                                      | bits a number       |
|------------------|---------|--------------------------------------------|---------------------|
| int8, int4       | INT8, 4 | float32, of 256                            | 8.125, 4.125        |
| e4m3, e5m2       | fp8     | float32, of 128                            | 8.25                |
| mxfp8            | E4M3    | a power of two in a byte (E8M0), of 32     | 8.25                |
| nvfp4            | E2M1    | E4M3, of 16; and float32 for the whole row | 4.5                 |

A scale is max|x| / largest, so that the largest number of a block can be said, and at least 2^-126, whose reciprocal is
finite: blocks of zeros, and of numbers so small that float32 has few bits for them, become zeros. NaN or infinity makes
its scale NaN, and all numbers that share it: what is not finite must not arrive as if it were.

fp8 of a tensor, of its rows, or of blocks is one format with another `block`: `Scaled(E4M3, None)` has one scale for
each row of what it is given, so a flat tensor has one, and a matrix one for each of its rows.

OCP Microscaling Formats (MX) Specification 1.0, 2023, for E8M0. It rounds the exponent of a scale down, and what is
larger than the largest number is cut off; here scales are rounded up, and nothing is. NVIDIA 2025, "Pretraining Large
Language Models with NVFP4", arXiv 2509.25149.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from reference.errors import BadInput

from .elements import E2M1, E4M3, E5M2, INT4, INT8, Element, power_of_two

TINY = torch.finfo(torch.float32).tiny
HUGE = torch.finfo(torch.float32).max


class Format(Protocol):
    """How numbers are written in bytes."""

    def nbytes(self, numel: int) -> int:
        """Bytes of so many numbers, scales included."""

    def encode(self, x: Tensor, seed: int | None = None) -> Tensor:
        """The bytes of each row of x: [..., n] -> [..., nbytes(n)], uint8.

        Args:
            x: in any floating point. Each row, along the last dim, is written by itself.
            seed: round by chance, with numbers made of this seed and of places in `x`; None to the nearest.
        """

    def decode(self, payload: Tensor, numel: int) -> Tensor:
        """What `numel` numbers of each row have become, in float32: [..., nbytes(n)] -> [..., n]."""

    def error_bound(self, x: Tensor, by_chance: bool = False) -> Tensor:
        """How far what `decode` gives can be from each number of x at most, in float32."""


class ScaleKind(StrEnum):
    """How the scale of a block is written."""

    FLOAT32 = "float32"
    E8M0 = "e8m0"  # the exponent of a power of two, in a byte
    E4M3 = "e4m3"  # a byte, times a float32 of the whole row


@dataclass(frozen=True)
class Scaled:
    """Numbers of few bits, of which each block has a scale.

    Args:
        element: the numbers.
        block: how many share a scale; None for all of a row. The last block of a row may be shorter.
        scale: how it is written.
    """

    element: Element
    block: int | None
    scale: ScaleKind = ScaleKind.FLOAT32

    def __post_init__(self) -> None:
        if self.block is not None and self.block < 1:
            raise BadInput(f"a block has 1 number or more, not {self.block}")

    def nbytes(self, numel: int) -> int:
        codes, blocks = -(-numel * self.element.bits // 8), self._blocks(numel)
        if not numel:
            return 0
        return codes + {ScaleKind.FLOAT32: 4 * blocks, ScaleKind.E8M0: blocks, ScaleKind.E4M3: blocks + 4}[self.scale]

    def encode(self, x: Tensor, seed: int | None = None) -> Tensor:
        if not x.is_floating_point():
            raise BadInput(f"{x.dtype} is not quantised: send it as it is")
        numel, blocks = x.shape[-1], self._in_blocks(x.float())
        if not numel:
            return x.new_empty(x.shape, dtype=torch.uint8)
        written, scales = self._scales(blocks.abs().amax(-1))
        rounded = self.element.round(blocks / scales.unsqueeze(-1), seed)
        codes = self.element.to_bytes(rounded.flatten(-2)[..., :numel])
        return torch.cat((codes, written), -1)

    def decode(self, payload: Tensor, numel: int) -> Tensor:
        if not numel:
            return payload.float()
        codes = -(-numel * self.element.bits // 8)
        values = self.element.from_bytes(payload[..., :codes], numel)
        scales = self._read_scales(_together(payload[..., codes:]))
        numbers = (self._in_blocks(values) * scales.unsqueeze(-1)).flatten(-2)[..., :numel]
        return numbers.clamp_(-HUGE, HUGE)  # of float32's largest, the next number may be too large for it

    def error_bound(self, x: Tensor, by_chance: bool = False) -> Tensor:
        """Half of a step, or a whole one by chance, at each number; and what float32 loses on the way, 2^-22 of it.

        Steps are of the numbers that there are, times the scale. Chance may end above the number, where steps may be
        twice as wide: that is a whole step, too.
        """
        if not x.shape[-1]:
            return x.float()
        blocks = self._in_blocks(x.float())
        _, scales = self._scales(blocks.abs().amax(-1))
        scales = scales.unsqueeze(-1)
        steps = self.element.step(blocks / scales) * (1.0 if by_chance else 0.5) + self.element.largest * 2.0**-22
        return (steps * scales + torch.zeros_like(blocks)).flatten(-2)[..., : x.shape[-1]]

    def _blocks(self, numel: int) -> int:
        return -(-numel // self._block(numel))

    def _block(self, numel: int) -> int:
        return max(1, numel) if self.block is None else self.block

    def _in_blocks(self, x: Tensor) -> Tensor:
        """[..., n] as [..., blocks, block], with zeros at the end."""
        numel, block = x.shape[-1], self._block(x.shape[-1])
        missing = self._blocks(numel) * block - numel
        padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
        return padded.unflatten(-1, (self._blocks(numel), block))

    def _scales(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        """The scales of blocks with these largest numbers, [..., blocks]: as bytes of each row, and as they are read.

        What few bits round, they round up: no number of a block is too large for its scale.
        """
        scales = of_largest(largest, self.element.largest)
        match self.scale:
            case ScaleKind.FLOAT32:
                written = _as_bytes(scales)
            case ScaleKind.E8M0:
                mantissa, exponent = torch.frexp(scales)
                exponent = exponent - (mantissa == 0.5).int()  # rounded up: 2^exponent is the scale, or more
                written = torch.where(scales.isnan(), 255, exponent + 127).to(torch.uint8)
            case ScaleKind.E4M3:
                of_row = self._of_row(largest.amax(-1, keepdim=True))
                written = torch.cat((self._in_a_row(scales, of_row), _as_bytes(of_row)), -1)
        return written, self._read_scales(written)

    def _of_row(self, largest: Tensor) -> Tensor:
        """What the scales of blocks are multiples of: [..., 1] of the largest number of each row."""
        return of_largest(largest, self.element.largest * E4M3.largest)

    def _in_a_row(self, scales: Tensor, of_row: Tensor) -> Tensor:
        """Scales [..., blocks] as bytes, multiples of `of_row` [..., 1]."""
        return E4M3.to_bytes(E4M3.round_up((scales / of_row).clamp_min_(2.0**-9)))

    def _read_scales(self, written: Tensor) -> Tensor:
        match self.scale:
            case ScaleKind.FLOAT32:
                return written.view(torch.float32)
            case ScaleKind.E8M0:
                return power_of_two(written.int() - 127).masked_fill_(written == 255, torch.nan)
            case ScaleKind.E4M3:
                of_row = _together(written[..., -4:]).view(torch.float32)
                return E4M3.from_bytes(written[..., :-4], written.shape[-1] - 4) * of_row


def of_largest(largest: Tensor, number: float) -> Tensor:
    """Scales with which `number` stands for these; NaN where they are not finite."""
    scales = (largest / number).clamp_(TINY, HUGE / number * (1 - 2.0**-23))  # times `number` it is finite again
    return scales.masked_fill_(~largest.isfinite(), torch.nan)


def _together(x: Tensor) -> Tensor:
    """A copy without gaps between its rows; where there is one row, `clone` alone would keep its distance to a next."""
    return x.clone(memory_format=torch.contiguous_format)


def _as_bytes(x: Tensor) -> Tensor:
    """[..., n] in float32 as [..., 4n]."""
    return x.contiguous().view(torch.uint8)


FORMATS: Mapping[str, Scaled] = MappingProxyType(
    {
        "int8": Scaled(INT8, 256),
        "int4": Scaled(INT4, 256),
        "e4m3": Scaled(E4M3, 128),
        "e5m2": Scaled(E5M2, 128),
        "mxfp8": Scaled(E4M3, 32, ScaleKind.E8M0),
        "nvfp4": Scaled(E2M1, 16, ScaleKind.E4M3),
    }
)
"""By the names of `--quantize-weights`."""
