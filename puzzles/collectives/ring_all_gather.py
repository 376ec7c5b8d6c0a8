"""collectives.ring_all_gather: All-gather around a ring.

rankwise check collectives.ring_all_gather
rankwise hint collectives.ring_all_gather

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


def ring(x: Tensor, out: Tensor, group: ProcessGroup) -> None:
    """All-gather around a ring.

    Every rank brings a chunk. Afterwards every rank has all of them, one after
    another in `out`. The ranks stand in a ring and talk to their neighbours
    only: in each step a rank passes on to the right what it last got from the
    left.

    Given is a way to send to one rank while you receive from another:
    `exchange(outgoing, target, incoming, source, group)` puts what comes into
    `incoming`.

    Args:
        x: contiguous, of the same dtype on every rank. Leave it as it is.
        out: contiguous, room for all chunks; it may have more dimensions than
            `x`. Flat, and cut as `tensor_split(n)` cuts, its r-th chunk is as
            long as rank r's `x`: longer by one than others where n does not
            divide.
        group: n ranks. Any n.

    Budget: n-1 steps; every rank sends all chunks but one, once. No memory
    besides what is there.
    """
    raise NotImplementedError("not solved yet")
