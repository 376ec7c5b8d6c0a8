"""The bytes of `formats`, tile by tile: what a pass over memory brings is used by all that needs it.

`formats` goes over the whole tensor six times and more, each time through memory. Here 64 thousand numbers are read
once, and stay in the core's cache until their bytes are written. Two integers of 4 bits are joined within one of 16
bits, and fp8 is made by the processor's conversion, which rounds as `elements` does by hand.

Of NVFP4 the scales need the whole row first: so its tiles are read twice. Numbers of E2M1 change at quarters, and on
some of those they go up, on others down. So all there is to know of a number are the quarters next to it, below and
above, which are the same where it is on one: their sum is a place, and a table has the byte for each pair of places.

What is rounded by chance is left to `formats`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ..elements import E2M1
from ..formats import FORMATS, HUGE, Scaled, ScaleKind, of_largest

TILE = 1 << 16  # numbers: 256 KiB of float32, and as much for what is made of them
SHORT = 32  # numbers of a row
PAIRS = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
BYTES = E2M1.to_bytes(E2M1.round(PAIRS.view(torch.int8).view(-1, 2) / 8.0)).flatten()
"""Of two places, of which each is the sum of the quarters below and above a number, the byte that says both."""
NUMBERS = E2M1.from_bytes(torch.arange(256, dtype=torch.uint8)[:, None], 2).view(torch.int64).flatten()
"""Of each byte, its two numbers in float32."""


class Tiled(Scaled):
    """The same format: the same bytes, and the same numbers back."""

    def encode(self, x: Tensor, seed: int | None = None) -> Tensor:
        if seed is not None or not (x.is_floating_point() and self._is_tiled(x)):
            return super().encode(x, seed)
        numel = x.shape[-1]
        payload = torch.empty((*x.shape[:-1], self.nbytes(numel)), dtype=torch.uint8)
        for row, written in zip(x.reshape(-1, numel), payload.view(-1, payload.shape[-1]), strict=True):
            self._encode_row(row, written)
        return payload

    def decode(self, payload: Tensor, numel: int) -> Tensor:
        if not self._is_tiled(payload):
            return super().decode(payload, numel)
        out = torch.empty((*payload.shape[:-1], numel))
        for written, row in zip(payload.reshape(-1, payload.shape[-1]), out.view(-1, numel), strict=True):
            self._decode_row(written, row)
        return out

    def _is_tiled(self, x: Tensor) -> bool:
        """Whether it can be done here: on a CPU, in blocks that begin at whole bytes and fit in a tile."""
        is_known = self.element.dtype is not None or self.element.fraction is None or self.element is E2M1
        fits = self.block is not None and self.block % 2 == 0 and self.block <= TILE
        return is_known and fits and x.is_cpu and x.numel() > 0

    def _encode_row(self, row: Tensor, written: Tensor) -> None:
        codes, scales = self._parts(written, len(row))
        room, known = torch.empty(min(TILE, len(row))), None
        if self.scale is ScaleKind.E4M3:
            known = self._scales_of_row(row, scales, room)
        for begin, end, block in self._tiles(len(row)):
            x = row[begin:end].float().view(-1, block)
            at = begin // self.block
            if known is None:
                of_blocks, read = self._scales(_largest(x, room))
                first = len(of_blocks) // len(x) * at
                scales[first : first + len(of_blocks)] = of_blocks
            else:
                read = known[at : at + len(x)]
            ratio = torch.div(x, read.unsqueeze(1), out=room[: end - begin].view_as(x))
            if self.element is E2M1 and read.isnan().any():
                ratio.nan_to_num_()
            self._write(ratio.view(-1), codes[self._bytes(begin) : self._bytes(end)])

    def _scales_of_row(self, row: Tensor, scales: Tensor, room: Tensor) -> Tensor:
        """Write the scales of all blocks, which are multiples of one of the row, and that. Returns them as read."""
        tiles = (row[begin:end].float().view(-1, block) for begin, end, block in self._tiles(len(row)))
        largest = torch.cat([_largest(x, room) for x in tiles])
        of_row = self._of_row(largest.amax(0, keepdim=True))
        for part, out in zip(largest.split(TILE), scales[:-4].split(TILE), strict=True):
            out.copy_(self._in_a_row(of_largest(part, self.element.largest), of_row))
        scales[-4:] = of_row.view(torch.uint8)
        return self._read_scales(scales.clone())

    def _decode_row(self, written: Tensor, row: Tensor) -> None:
        codes, scales = self._parts(written, len(row))
        read = self._read_scales(scales.clone())
        for begin, end, block in self._tiles(len(row)):
            numbers = self._read(codes[self._bytes(begin) : self._bytes(end)], end - begin).view(-1, block)
            first, out = begin // self.block, row[begin:end].view(-1, block)
            torch.mul(numbers, read[first : first + len(numbers)].unsqueeze(1), out=out)
            out.clamp_(-HUGE, HUGE)

    def _parts(self, written: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        return written[: self._bytes(numel)], written[self._bytes(numel) :]

    def _bytes(self, numel: int) -> int:
        """Of the codes of so many numbers."""
        return -(-numel * self.element.bits // 8)

    def _tiles(self, numel: int) -> Iterator[tuple[int, int, int]]:
        """Begin, end and length of blocks of each tile; the last block of a row, if it is shorter, by itself."""
        whole, step = numel // self.block * self.block, TILE // self.block * self.block
        for begin in range(0, whole, step):
            yield begin, min(begin + step, whole), self.block
        if whole < numel:
            yield whole, numel, numel - whole

    def _write(self, ratio: Tensor, codes: Tensor) -> None:
        """Round in place, and write."""
        if self.element is E2M1:
            below = ratio.mul_(4).floor()
            places = below.add_(ratio.ceil_()).to(torch.int8)
            if len(places) % 2:
                places = torch.nn.functional.pad(places, (0, 1))
            torch.index_select(BYTES, 0, places.view(torch.uint16).int(), out=codes)
        elif self.element.fraction is not None:
            codes.view(self.element.dtype).copy_(ratio.clamp_(-self.element.largest, self.element.largest))
        elif self.element.bits == 8:
            codes.view(torch.int8).copy_(ratio.round_())
        else:
            integers = ratio.round_().to(torch.int8)
            if len(integers) % 2:
                integers = torch.nn.functional.pad(integers, (0, 1))
            pairs = integers.view(torch.int16)
            codes.copy_((pairs & 0x0F) | ((pairs >> 4) & 0xF0))

    def _read(self, codes: Tensor, numel: int) -> Tensor:
        if self.element is E2M1:
            return NUMBERS.index_select(0, codes.int()).view(torch.float32)[:numel]
        if self.element.fraction is not None:
            return codes.view(self.element.dtype).float()
        if self.element.bits == 8:
            return codes.view(torch.int8)
        pairs = codes.to(torch.int16)
        integers = ((pairs & 0x0F) | ((pairs & 0xF0) << 4)).view(torch.int8)[:numel]
        return (integers ^ 8) - 8  # from two's complement of 4 bits


def _largest(x: Tensor, room: Tensor) -> Tensor:
    """The largest absolute value of each row of `x`; `room` is used on the way.

    Of short rows, which torch reduces one by one, halves are compared with halves.
    """
    x = torch.abs(x, out=room[: x.numel()].view_as(x))
    while x.shape[1] <= SHORT and x.shape[1] % 2 == 0:
        x = torch.maximum(*x.chunk(2, 1))
    return torch.amax(x, 1)


TILED: Mapping[str, Tiled] = MappingProxyType(
    {name: Tiled(each.element, each.block, each.scale) for name, each in FORMATS.items()}
)
"""As `formats.FORMATS`."""
