"""collectives.ring_all_reduce: All-reduce around a ring.

rankwise check collectives.ring_all_reduce
rankwise hint collectives.ring_all_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import exchange, exchange_reduce
from reference.collectives.reduction import finish

SUM = dist.ReduceOp.SUM


def ring(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """All-reduce around a ring.

    Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of
    all of them, in place.

    Cut `x` into n chunks. In the first half, chunks travel to the right and
    every rank adds its own to what comes; after n-1 steps every rank holds one
    chunk of the sum. In the second half those travel around.

    Given are two ways to send to one rank while you receive from another:
    `exchange(outgoing, target, incoming, source, group)` puts what comes into
    `incoming`,
    `exchange_reduce(outgoing, target, accumulator, source, group, op)` adds it
    to what is there. And `finish(chunk, n, op)` ends the reduction of a chunk:
    it divides where `op` is the average.

    Args:
        x: contiguous, of the same shape and dtype on every rank. n need not
            divide the number of its elements.
        group: n ranks. Any n.
        op: how to combine.

    Budget: 2(n-1) steps, 2(n-1)/n of the tensor sent by each rank, and one
    chunk of memory.
    """
    raise NotImplementedError("not solved yet")
