"""Reduce: the root ends with the sum (or average, minimum, ...) of all ranks' tensors.

| algorithm | steps        | bytes sent by a rank     | good for                          |
|-----------|--------------|--------------------------|-----------------------------------|
| naive     | n-1          | size; the root 0         | two ranks                         |
| tree      | ceil(log2 n) | size; the root 0         | small tensors                     |

A reduce is a broadcast that runs backwards. For large tensors use reduce-scatter and gather.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import binomial
from .checks import check_op, check_root
from .reduction import SUM, combine, finish


def naive(x: Tensor, root: int, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` to the root, in place there: the root receives from one after another. Elsewhere `x` stays.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.
        op: how to combine.
    """
    check_root(root, group)
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    if rank != root:
        dist.send(x, group=group, group_dst=root)
        return
    received = torch.empty_like(x)
    for other in range(n):
        if other != root:
            dist.recv(received, group=group, group_src=other)
            combine(x, received, op)
    finish(x, n, op)


def tree(x: Tensor, root: int, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Reduce `x` to the root, in place there: pairs, then pairs of pairs. Elsewhere `x` ends as a partial result.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.
        op: how to combine.

    Binomial tree; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    check_root(root, group)
    check_op(op, x.dtype)
    rank, n = group.rank(), group.size()
    vertex = (rank - root) % n
    received = torch.empty_like(x)
    for child in binomial.children(vertex, n):
        dist.recv(received, group=group, group_src=(root + child) % n)
        combine(x, received, op)
    if vertex != 0:
        dist.send(x, group=group, group_dst=(root + binomial.parent(vertex)) % n)
    else:
        finish(x, n, op)
