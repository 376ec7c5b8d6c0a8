"""collectives.reduce_tree: Reduce along a tree.

rankwise check collectives.reduce_tree
rankwise hint collectives.reduce_tree

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


def tree(
    x: Tensor, root: int, group: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """Reduce along a tree.

    Every rank brings a tensor; afterwards the root's `x` holds the sum of all
    of them. The ranks add up in pairs, then in pairs of pairs: a broadcast
    along a tree, run backwards.

    Given are `combine(accumulator, received, op)`, which adds `received` to
    `accumulator` in place (or takes the larger of the two, or whatever `op`
    says), and `finish(x, n, op)`, which ends a reduction over n ranks: it
    divides where `op` is the average.

    Args:
        x: contiguous, of the same shape and dtype on every rank. What is in it
            afterwards matters on the root only.
        root: group rank of the one who gets the sum.
        group: n ranks. Any n, also one that is no power of two.
        op: how to combine.

    Budget: ⌈log2 n⌉ steps, one tensor sent by each rank but the root, memory
    for one more tensor.
    """
    raise NotImplementedError("not solved yet")
