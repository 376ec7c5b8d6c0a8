"""Any n for algorithms that want a power of two.

n = p + e, with p the greatest power of two. The first 2e ranks make pairs: the odd one of a pair hands its data to the
even one and sits out. That leaves p ranks, the vertices of a hypercube: neighbours differ in one bit. At the end the
even one hands the result back. Here n = 6, p = 4, e = 2:

    rank     0 ◀ 1   2 ◀ 3   4   5
    vertex   0       1       2   3

Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", sec. 4.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .checks import check_op
from .reduction import combine


@dataclass(frozen=True, slots=True)
class Hypercube:
    """The place of one rank in it."""

    n: int
    vertices: int  # p
    vertex: int  # of this rank or, if it sits out, of its partner
    partner: int | None  # the other rank of the pair; None for a rank that is in none
    sits_out: bool  # True for the odd one of a pair
    neighbours: tuple[tuple[int, int], ...]  # (distance, rank) one bit away, nearest first: distances 1, 2, ..., p/2

    def rank_of(self, vertex: int) -> int:
        """The rank at a vertex: the first of those it stands for. `vertices` gives n."""
        return vertex + min(vertex, self.n - self.vertices)


@lru_cache
def hypercube(rank: int, n: int) -> Hypercube:
    """The place of `rank` among n ranks."""
    bits = n.bit_length() - 1
    vertices = 1 << bits
    pairs = n - vertices
    paired = rank < 2 * pairs
    vertex = rank // 2 if paired else rank - pairs
    beside = [(1 << bit, vertex ^ 1 << bit) for bit in range(bits)]
    neighbours = tuple((distance, other + min(other, pairs)) for distance, other in beside)
    return Hypercube(n, vertices, vertex, rank ^ 1 if paired else None, paired and rank % 2 == 1, neighbours)


def fold(x: Tensor, cube: Hypercube, group: ProcessGroup, op: dist.ReduceOp) -> None:
    """Before: combine the `x` of each rank that sits out into its partner's."""
    check_op(op, x.dtype)
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
