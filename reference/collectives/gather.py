"""Gather: the root ends with all ranks' tensors, one after the other.

| algorithm | steps        | bytes sent by a rank                  | good for                              |
|-----------|--------------|---------------------------------------|---------------------------------------|
| naive     | n-1          | its tensor; the root 0                | large tensors                         |
| tree      | ceil(log2 n) | the tensors of its family; the root 0 | small tensors: they travel in company |

A gather is a scatter that runs backwards.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import binomial
from .checks import check_root, check_size
from .chunks import copy


def naive(x: Tensor, out: Tensor | None, root: int, group: ProcessGroup) -> None:
    """Collect every rank's `x` on the root: it receives from one after another.

    Args:
        x: contiguous, the same size and dtype on every rank.
        out: on the root, room for all n of them: n * x.numel() elements. Elsewhere None.
        root: group rank.
        group: n ranks. Any n.
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    if rank != root:
        dist.send(x, group=group, group_dst=root)
        return
    check_size(out, n * x.numel(), x.dtype)
    rows = out.view(n, x.numel())
    copy(x, rows[root])
    for other in range(n):
        if other != root:
            dist.recv(rows[other], group=group, group_src=other)


def tree(x: Tensor, out: Tensor | None, root: int, group: ProcessGroup) -> None:
    """Collect every rank's `x` on the root: each collects those of its family and passes them up together.

    Args:
        x: contiguous, the same size and dtype on every rank.
        out: on the root, room for all n of them: n * x.numel() elements. Elsewhere None.
        root: group rank.
        group: n ranks. Any n.

    Binomial tree; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    vertex = (rank - root) % n
    if vertex == 0:
        check_size(out, n * x.numel(), x.dtype)
    held = x.new_empty(binomial.family(vertex, n), x.numel())
    copy(x, held[0])
    for child in binomial.children(vertex, n):
        first = child - vertex
        dist.recv(held[first : first + binomial.family(child, n)], group=group, group_src=(root + child) % n)
    if vertex != 0:
        dist.send(held, group=group, group_dst=(root + binomial.parent(vertex)) % n)
    else:
        copy(held.roll(root, 0), out)  # row v came from rank (root + v) mod n
