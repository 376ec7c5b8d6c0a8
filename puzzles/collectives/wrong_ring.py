"""collectives.wrong_ring: Spot the wrong ring.

rankwise check collectives.wrong_ring
rankwise hint collectives.wrong_ring

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import exchange
from reference.collectives.reduction import combine, finish

SUM = dist.ReduceOp.SUM


def ring(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """Spot the wrong ring.

    An all-reduce around a ring that one colleague has written, another has
    reviewed, and a test has found right: its sums are. But on n ranks it is
    more than n times slower than it should be. Find out why, and mend it; the
    ring still goes to the right.

    Given are `exchange(outgoing, target, incoming, source, group)`,
    `combine(accumulator, received, op)` and `finish(x, n, op)`.

    Args:
        x: contiguous, of the same shape and dtype on every rank. n need not
            divide the number of its elements.
        group: n ranks. Any n.
        op: how to combine.

    Budget: 2(n-1) steps, 2(n-1)/n of the tensor sent by each rank, and one
    chunk of memory.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    flat, received = x.view(-1), torch.empty_like(x).view(-1)
    chunks, parts = flat.tensor_split(n), received.tensor_split(n)
    for step in range(n - 1):
        exchange(flat, right, received, left, group)
        theirs = (rank - step - 1) % n
        combine(chunks[theirs], parts[theirs], op)
    finish(chunks[right], n, op)
    for step in range(n):
        exchange(flat, right, received, left, group)
        theirs = (rank - step) % n
        if theirs != right:
            chunks[theirs].copy_(parts[theirs])
