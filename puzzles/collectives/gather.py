"""collectives.gather: Gather: all tensors on the root.

rankwise check collectives.gather
rankwise hint collectives.gather

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def naive(
    x: Tensor, out: Tensor | None, root: int, group: ProcessGroup
) -> None:
    """Gather: all tensors on the root.

    Every rank brings a tensor. Afterwards the root has all of them, rank 0's
    first: a scatter that runs backwards.

    Args:
        x: contiguous, of the same shape and dtype on every rank. Leave it as it
            is.
        out: on the root, of shape (n, *x.shape): row i is the place of rank i's
            tensor. On all other ranks None.
        root: group rank of the one who collects. Its own tensor belongs to it,
            too.
        group: n ranks. Any n.

    Budget: n-1 steps. Every rank but the root sends its tensor once. No memory
    besides what is there.
    """
    raise NotImplementedError("not solved yet")
