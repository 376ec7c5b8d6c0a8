"""collectives.recursive_doubling: All-reduce by recursive doubling.

rankwise check collectives.recursive_doubling
rankwise hint collectives.recursive_doubling

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import exchange_reduce
from reference.collectives.reduction import combine, finish

SUM = dist.ReduceOp.SUM


def recursive_doubling(
    x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """All-reduce by recursive doubling.

    Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of
    all of them, in place.

    For a power of two p: in the first step ranks that differ in their last bit
    swap tensors and add, so that both hold the sum of two. In the next step
    those that differ in the last bit but one: the sum of four. Then eight.

    For any other n, let p be the greatest power of two below it. Ranks p and
    beyond hand their tensor to the rank p below them, sit out, and are given
    the sum at the end.

    Given are
    `exchange_reduce(outgoing, target, accumulator, source, group, op)`, which
    sends to one rank while it adds what comes from another to `accumulator`
    (all flat; the two may be the same tensor); and
    `combine(accumulator, received, op)` and `finish(x, n, op)` as before.

    Args:
        x: contiguous, of the same shape and dtype on every rank.
        group: n ranks. Any n.
        op: how to combine.

    Budget: log2 p steps, and two more where n is no power of two; a whole
    tensor sent in each of them. Memory for one more tensor.
    """
    raise NotImplementedError("not solved yet")
