"""collectives.broadcast_tree: Broadcast along a tree.

rankwise check collectives.broadcast_tree
rankwise hint collectives.broadcast_tree

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def tree(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Broadcast along a tree.

    The root has a tensor that every rank needs. After the first step two ranks
    have it, after the second four, then eight: each rank that has it helps to
    spread it.

    Args:
        x: contiguous, of the same shape and dtype on every rank. On the root
            the tensor to send; on all others the place where it goes.
        root: group rank of the one who has it.
        group: n ranks. Any n, also one that is no power of two.

    Budget: ⌈log2 n⌉ steps; no rank sends more often than there are steps. No
    memory besides `x`.
    """
    raise NotImplementedError("not solved yet")
