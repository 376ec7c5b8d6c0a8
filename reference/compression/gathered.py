"""Weights that linear layers multiply in 8 bits travel in 8 bits: FSDP gathers a quarter of what float32 takes.

A layer that rounds its weight needs no more of it than what is left after that. So ranks round their shards, and gather
codes: a byte for each element, instead of two or four. For that all shards of a matrix need one scale, that of its
largest number, which one rank has. Shards change once in a step. So once in a step ranks tell each other the largest
numbers of all their matrices in one message, and not before each gather (PyTorch's float8 calls it
`precompute_float8_dynamic_scale_for_fsdp`).

Over whom? Shards of a matrix, and its blocks on tensor-parallel ranks; replicas of hybrid sharding find the same by
themselves. What comes out is what the layer would have made of the whole weight: a code times a power of two is its
own rounding. So nothing is learned otherwise, and other parameters travel as ever.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.communicator import Communicator, Finish
from reference.compression.plain_low_bits import EightBitNumbers, codes, scale_of
from reference.zero.unit import FlatParameters


class EightBits:
    """How the weights of linear layers travel.

    Args:
        numbers: of 8 bits.
        communicator: of all ranks that hold parts of one matrix.
    """

    def __init__(self, numbers: EightBitNumbers, communicator: Communicator) -> None:
        self.numbers, self.communicator = numbers, communicator
        self._scales: dict[FlatParameters, Tensor] = {}  # of each parameter of a unit

    def takes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a parameter is the weight of a linear layer that rounds it."""
        return ".blocks." in f".{name}" and len(shape) == 2 and name.endswith(".weight") and ".router." not in name

    @torch.no_grad()
    def agree(self, units: Sequence[FlatParameters]) -> None:
        """Find the scales of all parameters of these units: shards have changed. All ranks call this together."""
        mine = [unit.shard.new_zeros(len(unit.names)) for unit in units]
        for unit, largest in zip(units, mine, strict=True):
            for piece in unit.layout.pieces(unit.communicator.rank()):
                if piece.begin < piece.end:
                    largest[piece.index] = piece.within(unit.shard).to(unit.full.dtype).abs().amax()
        if not mine:
            return
        known = torch.cat(mine)
        agreed = known.clone()
        self.communicator.all_reduce(agreed, dist.ReduceOp.MAX)
        scales = scale_of(torch.maximum(agreed, known), self.numbers)  # a NaN may get lost on the way
        self._scales.update(zip(units, scales.split([len(unit.names) for unit in units]), strict=True))

    def start_gather(self, unit: FlatParameters) -> Finish:
        """Begin to make a unit's parameters whole."""
        scales = self._scales[unit]
        own = torch.zeros(unit.layout.shard, dtype=self.numbers.dtype, device=unit.shard.device)
        for piece in unit.layout.pieces(unit.communicator.rank()):
            mine = piece.within(unit.shard).to(unit.full.dtype).to(scales.dtype)  # as the layer computes with it
            piece.within(own).copy_(codes(mine, scales[piece.index], self.numbers))
        whole = torch.empty(unit.layout.numel, dtype=torch.uint8, device=own.device)
        arrived = unit.communicator.start_all_gather(own.view(torch.uint8), whole)

        def finish() -> Tensor:
            few = arrived().view(self.numbers.dtype)
            for index, scale in enumerate(scales):
                view = unit.layout.view(unit.full, index)
                view.copy_(unit.layout.view(few, index).to(scales.dtype) * scale)
            return unit.full

        return finish
