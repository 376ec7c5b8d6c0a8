"""All-reduce: every rank ends with the sum (or average, minimum, ...) of all ranks' tensors.

| algorithm          | steps                     | bytes sent by a rank             | good for                        |
|--------------------|---------------------------|----------------------------------|---------------------------------|
| naive              | 2(n-1)                    | root: (n-1) · size; others: size | nothing; simple                 |
| ring               | 2(n-1)                    | 2(n-1)/n · size                  | large tensors                   |
| recursive doubling | log2 n                    | log2 n · size                    | small tensors                   |
| halving-doubling   | 2 log2 n                  | 2(n-1)/n · size                  | the sizes between               |
| double binary tree | about 4 log2 n + 4 pieces | at most 2 · size                 | large tensors on very many ranks |
| hierarchical       | 2(l-1) + 2(m-1)           | 2(l-1)/l · size in its node,     | m nodes of l ranks, with slow   |
|                    |                           | 2(m-1)/m · size/l between nodes  | links between them              |

All in place. All ranks end with the same bits: each sum is computed once, or in the same order. Where n is no power of
two, doubling and halving-doubling take two more steps, and some ranks send a whole tensor more. Faster forms of ring
and doubling, for processes of one machine, are in `fast.blockwise` and `fast.eager`.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import all_gather, broadcast, double_tree, reduce, reduce_scatter
from .checks import check_op
from .double_tree import Hop
from .exchange import exchange, exchange_reduce
from .hypercube import fold, hypercube, unfold
from .reduction import SUM, combine, finish


def naive(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: everything to rank 0, and the result back from there.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n.
        op: how to combine.
    """
    reduce.naive(x, 0, group, op)
    broadcast.naive(x, 0, group)


def ring(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: reduce-scatter, then all-gather, around the ring.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; x.numel() need not divide by n.
        op: how to combine.

    Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.view(-1).tensor_split(n)
    for step in range(n - 1):
        exchange_reduce(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left, group, op)
    finish(chunks[right], n, op)
    for step in range(n - 1):
        exchange(chunks[(right - step) % n], right, chunks[(rank - step) % n], left, group)


def recursive_doubling(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: swap whole tensors with a rank 1, then 2, then 4, ... away.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; two more steps where n is no power of two.
        op: how to combine.

    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    cube, x = hypercube(group.rank(), group.size()), x.view(-1)
    fold(x, cube, group, op)
    if not cube.sits_out:
        for _, neighbour in cube.neighbours:
            exchange_reduce(x, neighbour, x, neighbour, group, op)
        finish(x, cube.n, op)
    unfold(x, cube, group)


def halving_doubling(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over `group`, in place: swap halves, quarters, ... to add them up, and go the same way back.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; two more steps where n is no power of two.
        op: how to combine.

    Rabenseifner 2004, "Optimization of collective reduction operations".
    """
    cube, x = hypercube(group.rank(), group.size()), x.view(-1)
    fold(x, cube, group, op)
    if not cube.sits_out:
        mine, way_back = x, []
        for distance, neighbour in cube.neighbours:
            lower, upper = mine.tensor_split(2)
            mine, theirs = (upper, lower) if cube.vertex & distance else (lower, upper)
            exchange_reduce(theirs, neighbour, mine, neighbour, group, op)
            way_back.append((mine, theirs, neighbour))
        finish(mine, cube.n, op)
        for mine, theirs, neighbour in reversed(way_back):
            exchange(mine, neighbour, theirs, neighbour, group)
    unfold(x, cube, group)


def double_binary_tree(
    x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM, pieces: int = double_tree.PIECES
) -> None:
    """Reduce `x` over `group`, in place: each half of it up a tree of its own, piece by piece, and down again.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        group: n ranks. Any n; x.numel() need not divide.
        op: how to combine.
        pieces: of each half. More keep more links busy; each costs latencies.

    Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    halves = [half.tensor_split(pieces) for half in x.view(-1).tensor_split(2)]
    buffer = torch.empty_like(halves[0][0])

    def part(hop: Hop | None) -> Tensor | None:
        return hop and halves[hop.tree][hop.piece]

    moves = double_tree.moves(rank, n, pieces)
    for up, down in moves:
        received = down and buffer[: part(down).numel()]
        exchange(part(up), up and up.parent, received, down and down.child, group)
        if down:
            combine(part(down), received, op)
    for up, down in reversed(moves):
        exchange(part(down), down and down.child, part(up), up and up.parent, group)
    finish(x, n, op)


def hierarchical(x: Tensor, intra: ProcessGroup, inter: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` over nodes and ranks of nodes, in place: only 1/l of it crosses between nodes on each link.

    Reduce-scatter within the node, all-reduce of each shard between the nodes, all-gather within the node.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        intra: the l ranks of this node. The same number on every node.
        inter: the m ranks, one on each node, that have the same number within their nodes.
        op: how to combine.

    Goyal et al. 2017, "Accurate, large minibatch SGD", sec. 4; Jia et al. 2018, "Highly scalable deep learning
    training system with mixed-precision", sec. 3.
    """
    shard = torch.empty_like(x.view(-1).tensor_split(intra.size())[intra.rank()])
    reduce_scatter.ring(x, shard, intra, op)
    ring(shard, inter, op)
    all_gather.ring(shard, x, intra)
