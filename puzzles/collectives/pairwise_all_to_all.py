"""collectives.pairwise_all_to_all: All-to-all, pair by pair.

rankwise check collectives.pairwise_all_to_all
rankwise hint collectives.pairwise_all_to_all

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


def pairwise(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """All-to-all, pair by pair.

    Every rank has a chunk for every rank: the first is for rank 0, the second
    for rank 1. Afterwards `out` holds what every rank had for this one, rank
    0's chunk first. A transposition: if each rank is a row of a matrix, each is
    a column afterwards.

    Given is a way to send to one rank while you receive from another:
    `exchange(outgoing, target, incoming, source, group)` puts what comes into
    `incoming`.

    Args:
        x: contiguous, n chunks of the same length one after another, of the
            same shape and dtype on every rank. Leave it as it is.
        out: contiguous, like x; the place for what comes.
        group: n ranks. Any n.

    Budget: n-1 steps; every rank sends each chunk once, straight to where it
    belongs, and keeps its own. No memory besides what is there.
    """
    raise NotImplementedError("not solved yet")
