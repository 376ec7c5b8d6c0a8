"""collectives.naive_all_reduce: All-reduce through rank 0.

rankwise check collectives.naive_all_reduce
rankwise hint collectives.naive_all_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.reduction import combine, finish

SUM = dist.ReduceOp.SUM


def naive(x: Tensor, group: ProcessGroup, op: dist.ReduceOp = SUM) -> None:
    """All-reduce through rank 0.

    Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of
    all of them, in place. The obvious way: all send theirs to rank 0, which
    adds them up and sends the sum back.

    Given are `combine(accumulator, received, op)`, which adds `received` to
    `accumulator` in place (or takes the larger of the two, or whatever `op`
    says), and `finish(x, n, op)`, which ends a reduction over n ranks: it
    divides where `op` is the average.

    Args:
        x: contiguous, of the same shape and dtype on every rank.
        group: n ranks. Any n.
        op: how to combine.

    Budget: 2(n-1) steps. Rank 0 sends n-1 tensors, the others send one. Memory
    for one more tensor.
    """
    raise NotImplementedError("not solved yet")
