"""Reduce-scatter: rank i ends with the sum (or average, ...) of every rank's i-th chunk.

| algorithm         | steps  | bytes sent by a rank | good for                        |
|-------------------|--------|----------------------|---------------------------------|
| ring              | n-1    | (n-1)/n · size       | large tensors                   |
| recursive halving | log2 n | (n-1)/n · size       | small tensors, n a power of two |

An all-gather that runs backwards, with additions. The input stays as it was. Where n is no power of two, recursive
halving takes two more steps and some ranks send a whole tensor.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .checks import check_chunk, check_op
from .chunks import copy, offsets
from .exchange import exchange
from .hypercube import fold, hypercube
from .reduction import SUM, combine, finish


def ring(x: Tensor, out: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce chunk i of every rank's `x` into the `out` of rank i: each partial sum visits every rank, its own last.

    Args:
        x: contiguous, n chunks one after another, the same shape and dtype on every rank. If its length does not
            divide by n, the chunks are those of `tensor_split`.
        out: contiguous; receives this rank's chunk.
        group: n ranks. Any n.
        op: how to combine.

    Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    check_chunk(out, x, rank, n)
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.view(-1).tensor_split(n)
    partial, buffers = chunks[left], (torch.empty_like(chunks[0]), torch.empty_like(chunks[0]))
    for step in range(n - 1):
        mine = chunks[(rank - step - 2) % n]
        received = out.view(-1) if step == n - 2 else buffers[step % 2][: mine.numel()]
        exchange(partial, right, received, left, group)
        combine(received, mine, op)
        partial = received
    copy(partial, out)
    finish(out, n, op)


def recursive_halving(x: Tensor, out: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce chunk i of every rank's `x` into the `out` of rank i: swap halves, then quarters, then eighths, ...

    Args:
        x: contiguous, n chunks one after another, the same shape and dtype on every rank; any length, as in `ring`.
        out: contiguous; receives this rank's chunk.
        group: n ranks. Any n; two more steps where n is no power of two.
        op: how to combine.

    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    check_chunk(out, x, rank, n)
    cube, start = hypercube(rank, n), offsets(x.numel(), n)
    alone = n > 1 and cube.partner is None  # at its vertex: what it receives last is its chunk
    held, first = x.view(-1), 0  # `held` begins with the chunks of vertex `first`

    def part(vertex: int, count: int) -> Tensor:
        """What is held for `count` vertices from `vertex` on."""
        begin = start[cube.rank_of(first)]
        return held[start[cube.rank_of(vertex)] - begin : start[cube.rank_of(vertex + count)] - begin]

    if cube.partner is not None:
        held = held if cube.sits_out else held.clone()
        fold(held, cube, group, op)
    if cube.sits_out:
        dist.recv(out, group=group, group_src=cube.partner)
        return
    for distance, neighbour in reversed(cube.neighbours):
        mine = cube.vertex & -distance
        kept = part(mine, distance)
        received = out.view(-1) if alone and distance == 1 else torch.empty_like(kept)
        exchange(part(mine ^ distance, distance), neighbour, received, neighbour, group)
        combine(received, kept, op)
        held, first = received, mine
    finish(held, n, op)
    if not alone:
        copy(held[: out.numel()], out)
    if cube.partner is not None:
        dist.send(held[out.numel() :], group=group, group_dst=cube.partner)
