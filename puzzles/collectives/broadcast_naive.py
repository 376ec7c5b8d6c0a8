"""collectives.broadcast_naive: Broadcast, one after another.

rankwise check collectives.broadcast_naive
rankwise hint collectives.broadcast_naive

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def naive(x: Tensor, root: int, group: ProcessGroup) -> None:
    """Broadcast, one after another.

    The root has a tensor that every rank needs. It sends it to all others, one
    after another; they receive it.

    Args:
        x: contiguous, of the same shape and dtype on every rank. On the root
            the tensor to send; on all others the place where it goes.
        root: group rank of the one who has it.
        group: n ranks. Any n.

    Budget: n-1 steps, and n-1 tensors sent by the root. No other rank sends
    anything.
    """
    raise NotImplementedError("not solved yet")
