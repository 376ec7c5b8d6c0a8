"""collectives.ring_reduce_scatter: Reduce-scatter around a ring.

rankwise check collectives.ring_reduce_scatter
rankwise hint collectives.ring_reduce_scatter

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


def ring(
    x: Tensor, out: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """Reduce-scatter around a ring.

    Every rank brings a tensor `x`, cut into n chunks. Afterwards rank i has, in
    `out`, the sum of every rank's i-th chunk. The ranks stand in a ring and
    talk to their neighbours only: a partial sum travels to the right, every
    rank adds its own part, and after n-1 steps it is complete, on the rank that
    it belongs to.

    Given are `exchange(outgoing, target, incoming, source, group)`, which sends
    to one rank while it receives from another;
    `combine(accumulator, received, op)`, which adds in place; and
    `finish(out, n, op)`, which ends a reduction over n ranks: it divides where
    `op` is the average.

    Args:
        x: contiguous, of the same shape and dtype on every rank. Its chunks are
            those of the flat tensor's `tensor_split(n)`: n need not divide.
            Leave it as it is.
        out: contiguous; the place for this rank's chunk. It may have more
            dimensions than one.
        group: n ranks. Any n.
        op: how to combine.

    Budget: n-1 steps; every rank sends n-1 chunks. Memory for two chunks.
    """
    raise NotImplementedError("not solved yet")
