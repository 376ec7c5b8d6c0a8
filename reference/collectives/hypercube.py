"""Any n for algorithms that want a power of two.

n = p + e, with p the greatest power of two. The first 2e ranks make pairs: the odd one of a pair hands its data to the
even one and sits out. That leaves p ranks, the vertices of a hypercube: neighbours differ in one bit. At the end the
even one hands the result back. Here n = 6, p = 4, e = 2:

    rank     0 ◀ 1   2 ◀ 3   4   5
    vertex   0       1       2   3

Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", sec. 4.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .reduction import combine


@dataclass(frozen=True, slots=True)
class Hypercube:
    """The place of a rank among n."""

    rank: int
    n: int

    @property
    def vertices(self) -> int:
        """p, the greatest power of two that is not above n."""
        return 1 << (self.n.bit_length() - 1)

    @property
    def pairs(self) -> int:
        """e, how many ranks are too many."""
        return self.n - self.vertices

    @property
    def sits_out(self) -> bool:
        """True for the odd one of a pair."""
        return self.rank < 2 * self.pairs and self.rank % 2 == 1

    @property
    def partner(self) -> int | None:
        """The other one of the pair; None for a rank that is in none."""
        return self.rank ^ 1 if self.rank < 2 * self.pairs else None

    @property
    def vertex(self) -> int:
        """Number of this rank (or, if it sits out, of its partner) in the hypercube."""
        return self.rank // 2 if self.rank < 2 * self.pairs else self.rank - self.pairs

    def rank_of(self, vertex: int) -> int:
        """The rank at a vertex. Also the first rank the vertex stands for; `vertices` gives n."""
        return vertex + min(vertex, self.pairs)

    @property
    def neighbours(self) -> list[tuple[int, int]]:
        """(distance, rank) of each vertex one bit away, nearest first: distances 1, 2, 4, ..., p/2."""
        distances = [1 << bit for bit in range(self.vertices.bit_length() - 1)]
        return [(distance, self.rank_of(self.vertex ^ distance)) for distance in distances]


def fold(x: Tensor, cube: Hypercube, group: ProcessGroup, op: dist.ReduceOp) -> None:
    """Before: combine the `x` of each rank that sits out into its partner's."""
    if cube.sits_out:
        dist.send(x, group=group, group_dst=cube.partner)
    elif cube.partner is not None:
        received = torch.empty_like(x)
        dist.recv(received, group=group, group_src=cube.partner)
        combine(x, received, op)


def unfold(x: Tensor, cube: Hypercube, group: ProcessGroup) -> None:
    """After: give the result `x` to each rank that sat out."""
    if cube.sits_out:
        dist.recv(x, group=group, group_src=cube.partner)
    elif cube.partner is not None:
        dist.send(x, group=group, group_dst=cube.partner)
