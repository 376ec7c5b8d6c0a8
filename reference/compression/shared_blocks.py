"""Blocks of neighbours in a parameter, as layouts cut them: whose numbers share a scale, and which ranks must agree.

A block is 256 neighbours of the whole flat parameter, so that the scales of any layout are those of one process. A
layout cuts through blocks: ZeRO and FSDP through the first and the last of a shard, tensor parallelism through every
one where it splits rows. The largest number of such a block is known when those ranks have told each other that each
have another part of it. All other blocks are a rank's own business, replicas find the same by themselves, and where no
block is cut, nothing is said.

This is the group over which `plain_low_bits.pack` finds its scales.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.compression.plain_low_bits import BLOCK
from reference.data_parallel.gradient_sync import ParameterShard
from reference.zero.agreement import together

Place = tuple[str, int]  # a parameter, and the number of one of its blocks
Told = Sequence[tuple[str, tuple, Sequence[int]]]  # of each part of a rank: name, what it covers, blocks that are cut


def places_of(part: ParameterShard) -> Tensor:
    """Where in the flat parameter the elements of a part are: int64, one for each of its master's; padding is -1."""
    places = torch.full((part.end - part.begin,), -1)
    for box, view in part.pieces(places):
        found, stride = torch.zeros((), dtype=torch.int64), 1
        for dim in reversed(range(len(box.sizes))):
            along = torch.arange(box.begins[dim], box.begins[dim] + box.sizes[dim]) * stride
            found = found + along.view(-1, *[1] * (len(box.sizes) - dim - 1))
            stride *= part.shape[dim] if part.shape else 1
        view.copy_(found)
    return places


class SharedBlocks:
    """The blocks of a rank's parts.

    Args:
        parts: that this rank has.
        communicator: of all ranks that have any. All of them make one together, and agree together; None for one
            process, where all parts are whole.
    """

    def __init__(self, parts: Sequence[ParameterShard], communicator: Communicator | None = None) -> None:
        self.parts, self.communicator = parts, communicator
        self.first, self.counts, told = [], [], []
        for part in parts:
            places = places_of(part)
            held = places[places >= 0] // BLOCK
            first, last = (int(held.min()), int(held.max())) if len(held) else (0, 0)
            known = torch.bincount(held - first, minlength=last - first + 1)
            whole = (part.shape.numel() - torch.arange(first, last + 1) * BLOCK).clamp(max=BLOCK)
            cut = ((known > 0) & (known < whole)).nonzero().flatten() + first
            self.first.append(first)
            self.counts.append(last - first + 1)
            told.append((part.name, (part.begin, part.end, part.block), cut.tolist()))
        self.asks = routes(together(lambda: told, communicator.group)) if communicator else [[[]]]
        begins = {part.name: sum(self.counts[:k]) - self.first[k] for k, part in enumerate(parts)}
        self.are_cut = any(places for asked in self.asks for places in asked)
        self._last: tuple[int, Tensor] | None = None
        rank = communicator.rank() if communicator else 0
        sent, received = [asked[rank] for asked in self.asks], self.asks[rank]
        self._sizes = [len(places) for places in sent], [len(places) for places in received]
        self._sent, self._received = (
            torch.tensor([begins[name] + number for of in ways for name, number in of], dtype=torch.int64)
            for ways in (sent, received)
        )

    def numbers(self, index: int) -> Tensor:
        """The block of each element of a part, counted from the first one that it has: int64."""
        if self._last is None or self._last[0] != index:  # of one part at a time: they are 8 bytes for each element
            part = self.parts[index]
            numbers = (places_of(part) // BLOCK - self.first[index]).clamp(min=0)  # padding, which is zero, is anywhere
            self._last = index, numbers.to(part.master.device)
        return self._last[1]

    def largest(self, index: int, *values: Tensor) -> Tensor:
        """The largest absolute value in each block of a part: [blocks, len(values)].

        Args:
            index: of the part.
            values: with an element for each of its master's.
        """
        numbers = self.numbers(index)
        found = values[0].new_zeros(len(values), self.counts[index])
        for row, x in zip(found, values, strict=True):
            row.scatter_reduce_(0, numbers, x.detach().abs().flatten(), "amax")
        return found.T

    def agree(self, largest: Sequence[Tensor]) -> list[Tensor]:
        """Of what `largest` says of each part, in order, that of whole blocks. All ranks call this together."""
        if not self.are_cut:
            return list(largest)
        width, like = (largest[0].shape[1], largest[0]) if largest else (2, torch.empty(0))
        rows = torch.cat([*largest]) if largest else like.new_zeros(0, width)
        sent, received = (index.to(rows.device) for index in (self._sent, self._received))
        arrived = rows.new_empty(len(received), width)
        self.communicator.all_to_all_uneven(rows[sent], arrived, *self._sizes)
        rows.scatter_reduce_(0, received[:, None].expand(-1, width), arrived, "amax")
        return list(rows.split(self.counts))


def routes(told: Sequence[Told]) -> list[list[list[Place]]]:
    """`[receiver][sender]`: which blocks a rank asks another one about, the same on every rank.

    Of several ranks that have the same part of a block, as replicas have, each asks another one.
    """
    holders: dict[Place, dict[tuple, list[int]]] = {}
    for rank, parts in enumerate(told):
        for name, covered, cut in parts:
            for number in cut:
                holders.setdefault((name, number), {}).setdefault(covered, []).append(rank)
    asks = [[[] for _ in told] for _ in told]
    for place, by_part in holders.items():
        for covered, ranks in by_part.items():
            others = [having for other, having in by_part.items() if other != covered]
            for copy, rank in enumerate(ranks):
                for having in others:
                    asks[rank][having[copy % len(having)]].append(place)
    return asks
