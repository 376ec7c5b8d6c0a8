"""Several tensors side by side in one flat one, cut into equal shards.

A message costs a latency, so many small tensors travel as one large one. And n ranks that share a flat tensor share it
evenly, however large its tensors are: the cuts go through the middle of them.

    two tensors     |a a a a a|b b b b b b|. .        13 = 5 + 6, padded by 2 ...
    four shards     |a a a a|a b b b|b b b .|. ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Elements [begin, end) of the flattened tensor `index`, which a shard holds from its element `at` on."""

    index: int
    begin: int
    end: int
    at: int

    def within(self, shard: Tensor) -> Tensor:
        """These elements in the shard."""
        return shard[self.at : self.at + self.end - self.begin]


@dataclass(frozen=True)
class FlatLayout:
    """Where each tensor is in the flat one. Padding at the end makes its length a multiple of `shards`."""

    shapes: tuple[torch.Size, ...]
    shards: int = 1

    @classmethod
    def of(cls, tensors: Sequence[Tensor], shards: int = 1) -> "FlatLayout":
        """The layout of `tensors`, in their order."""
        return cls(tuple(tensor.shape for tensor in tensors), shards)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each tensor begins, and where the padding begins."""
        return (0, *accumulate(shape.numel() for shape in self.shapes))

    @property
    def shard(self) -> int:
        """Elements of one shard."""
        return -(-self.starts[-1] // self.shards)

    @property
    def numel(self) -> int:
        """Elements of the flat tensor, padding included."""
        return self.shard * self.shards

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """A flat tensor of `numel` elements that holds copies of `tensors`; its padding is zero."""
        padding = tensors[0].new_zeros(self.numel - self.starts[-1])
        return torch.cat([*(tensor.flatten() for tensor in tensors), padding])

    def view(self, flat: Tensor, index: int) -> Tensor:
        """Tensor `index` within a flat tensor of `numel` elements."""
        return flat[self.starts[index] : self.starts[index + 1]].view(self.shapes[index])

    def views(self, flat: Tensor) -> list[Tensor]:
        """All tensors within a flat tensor of `numel` elements."""
        return [self.view(flat, index) for index in range(len(self.shapes))]

    def shard_of(self, flat: Tensor, rank: int) -> Tensor:
        """The shard of `rank` within a flat tensor of `numel` elements."""
        return flat[rank * self.shard : (rank + 1) * self.shard]

    def pieces(self, rank: int) -> list[Piece]:
        """What of which tensors the shard of `rank` holds; nothing of those that lie elsewhere.

        Tensors without elements are with rank 0.
        """
        first, last = rank * self.shard, (rank + 1) * self.shard
        found = []
        for index, start in enumerate(self.starts[:-1]):
            begin, end = max(start, first), min(self.starts[index + 1], last)
            if begin < end:
                found.append(Piece(index, begin - start, end - start, at=begin - first))
            elif self.shapes[index].numel() == 0 and rank == 0:
                found.append(Piece(index, 0, 0, at=0))
        return found
