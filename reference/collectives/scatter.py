"""Scatter: every rank ends with its own chunk of the root's tensor.

| algorithm | steps        | bytes sent by a rank                          | good for                              |
|-----------|--------------|-----------------------------------------------|---------------------------------------|
| naive     | n-1          | root: (n-1)/n · size, others 0                | large tensors                         |
| tree      | ceil(log2 n) | root the same; others what is not their own   | small tensors: they travel in company |
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import binomial
from .checks import check_root, check_size
from .chunks import copy


def naive(out: Tensor, chunks: Tensor | None, root: int, group: ProcessGroup) -> None:
    """Give rank i the i-th of the root's chunks: the root sends them one after another.

    Args:
        out: contiguous; receives this rank's chunk. The same size and dtype on every rank.
        chunks: on the root, the n chunks one after another: n * out.numel() elements. Elsewhere None.
        root: group rank.
        group: n ranks. Any n.
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    if rank != root:
        dist.recv(out, group=group, group_src=root)
        return
    check_size(chunks, n * out.numel(), out.dtype)
    rows = chunks.view(n, out.numel())
    for other in range(n):
        if other != root:
            dist.send(rows[other], group=group, group_dst=other)
    copy(rows[root], out)


def tree(out: Tensor, chunks: Tensor | None, root: int, group: ProcessGroup) -> None:
    """Give rank i the i-th of the root's chunks: each hands the further half of what it holds to a helper.

    Args:
        out: contiguous; receives this rank's chunk. The same size and dtype on every rank.
        chunks: on the root, the n chunks one after another: n * out.numel() elements. Elsewhere None.
        root: group rank.
        group: n ranks. Any n.

    Binomial tree; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    vertex = (rank - root) % n
    if vertex == 0:
        check_size(chunks, n * out.numel(), out.dtype)
        held = chunks.view(n, out.numel()).roll(-root, 0)  # row v is for vertex v
    else:
        held = out.new_empty(binomial.family(vertex, n), out.numel())
        dist.recv(held, group=group, group_src=(root + binomial.parent(vertex)) % n)
    for child in reversed(binomial.children(vertex, n)):
        first = child - vertex
        dist.send(held[first : first + binomial.family(child, n)], group=group, group_dst=(root + child) % n)
    copy(held[0], out)
