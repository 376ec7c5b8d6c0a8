"""collectives.halving_doubling: All-reduce by halving and doubling.

rankwise check collectives.halving_doubling
rankwise hint collectives.halving_doubling

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
from reference.collectives.hypercube import fold, hypercube, unfold
from reference.collectives.reduction import finish

SUM = dist.ReduceOp.SUM


def halving_doubling(
    x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """All-reduce by halving and doubling.

    Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of
    all of them, in place.

    As in recursive doubling, ranks that differ in one bit are partners. But
    they share the work: one of the two adds up the first half and the other the
    second. So each sends only the half that it does not keep, and continues
    with the other: a quarter in the next step, then an eighth. When every rank
    has a small part of the sum, they go the same way back, in reverse order,
    and give each other what they have.

    Given are `cube = hypercube(rank, n)`, this rank's place among the greatest
    power of two within n: `cube.vertex` is its number there, `cube.neighbours`
    are pairs (distance, rank) of its partners, distances 1, 2, 4, ...; and
    `cube.sits_out` is true for a rank beyond. `fold(x, cube, group, op)` hands
    what those have to a partner, `unfold(x, cube, group)` gives them the sum at
    the end. Then there are
    `exchange(outgoing, target, incoming, source, group)`,
    `exchange_reduce(outgoing, target, accumulator, source, group, op)` and
    `finish(x, n, op)`.

    Args:
        x: contiguous, of the same shape and dtype on every rank. Its length
            need not divide.
        group: n ranks. Any n.
        op: how to combine.

    Budget: with n a power of two, 2 log2 n steps and 2(n-1)/n of the tensor
    sent, as around a ring. Memory for half of the tensor. Otherwise two more
    steps, a whole tensor more, and memory for a whole one.
    """
    raise NotImplementedError("not solved yet")
