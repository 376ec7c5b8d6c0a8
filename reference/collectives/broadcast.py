"""Broadcast: every rank ends with the root's tensor.

| algorithm          | steps        | bytes sent by a rank             | good for                            |
|--------------------|--------------|----------------------------------|-------------------------------------|
| naive              | n-1          | root: (n-1) · size               | nothing; simple                     |
| flat               | 1            | root: (n-1) · size               | tiny tensors, few ranks             |
| tree               | ceil(log2 n) | size for each of its children    | small tensors                       |
| chain              | n-2 + pieces | size                             | large tensors: all links are in use |
| scatter-all-gather | 2            | root: size; others: nearly size  | large tensors, many ranks           |

`fast.eager` has a chain for processes of one machine.
"""

from itertools import pairwise

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from . import binomial
from .checks import check_root
from .exchange import exchange, start, wait

PIECES = 8  # of a chain, unless said otherwise


def naive(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place: the root sends it to one after another.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    if rank != root:
        dist.recv(x, group=group, group_src=root)
        return
    for other in range(n):
        if other != root:
            dist.send(x, group=group, group_dst=other)


def flat(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place: the root sends it to all at once.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.
    """
    check_root(root, group)
    others = [(x, other) for other in range(group.size()) if other != root]
    wait(start(others, [], group) if group.rank() == root else start([], [(x, root)], group))


def tree(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place: each rank that has it passes it on, twice as many in each step.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.

    Binomial tree; Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    vertex = (rank - root) % n
    # exchange, of one way each: dist.recv and dist.send would do the same, and look up ranks before
    if vertex != 0:
        exchange(None, None, x, (root + binomial.parent(vertex)) % n, group)
    for child in reversed(binomial.children(vertex, n)):
        exchange(x, (root + child) % n, None, None, group)


def chain(x: Tensor, root: int, group: ProcessGroup, pieces: int = PIECES) -> None:
    """Give every rank the root's `x`, in place: cut in pieces that follow each other from rank to rank.

    Each rank receives one piece while it sends the one before to the next rank.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n.
        pieces: how many. More keep more links busy; each costs a latency.

    Pipelined linear tree; Träff & Ripke 2008, "Optimal broadcast for fully connected processor-node networks", sec. 1.
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    is_first, is_last = rank == root, (rank + 1) % n == root
    parts = [None, *x.view(-1).tensor_split(pieces), None]
    for previous, current in pairwise(parts):
        outgoing = None if is_last else (current if is_first else previous)
        incoming = None if is_first else current
        exchange(outgoing, (rank + 1) % n, incoming, (rank - 1) % n, group)


def scatter_all_gather(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Give every rank the root's `x`, in place: one chunk to each other rank, which passes it on to all the others.

    The root takes no chunk for itself: it sends `x` once and is done.

    Args:
        x: contiguous, the same shape and dtype on every rank.
        root: group rank.
        group: n ranks. Any n; x.numel() need not divide.

    Barnett et al. 1994, "Interprocessor collective communication library (InterCom)"; known as van de Geijn's.
    """
    check_root(root, group)
    rank, n = group.rank(), group.size()
    if n == 1:
        return
    others = [(root + vertex) % n for vertex in range(1, n)]
    chunks = dict(zip(others, x.view(-1).tensor_split(n - 1), strict=True))  # by the rank that passes it on
    if rank == root:
        requests = start([(chunk, other) for other, chunk in chunks.items()], [], group)
    else:
        mine = chunks.pop(rank)
        exchange(None, None, mine, root, group)
        requests = start(
            [(mine, other) for other in chunks], [(chunk, other) for other, chunk in chunks.items()], group
        )
    wait(requests)
