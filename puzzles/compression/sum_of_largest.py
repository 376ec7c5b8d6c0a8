"""compression.sum_of_largest: Top-k, with places.

rankwise check compression.sum_of_largest
rankwise hint compression.sum_of_largest

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def sum_of_largest(x: Tensor, k: int, group: ProcessGroup) -> Tensor:
    """Top-k, with places.

    Each rank sends the k elements of its `x` with the largest magnitudes, and
    all ranks add up what all have sent. Ranks choose different elements, so a
    value means nothing without its place, and a place is as large as a value: 4
    bytes, as int32, if it is not sent as int64, as torch has it.

    Args:
        x: [N] float32 of this rank. Afterwards it has zeros where an element
            was sent: the rest is the residual.
        k: 1 to N.
        group: n ranks. Any n.

    Returns: [N] float32, the sum over ranks of what they have sent, the same on
    every rank to the last bit: add up in one order.

    Budget: one call; 8 k bytes to each other rank.
    """
    raise NotImplementedError("not solved yet")
