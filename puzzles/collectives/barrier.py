"""collectives.barrier: A barrier.

rankwise check collectives.barrier
rankwise hint collectives.barrier

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.collectives.exchange import exchange


def dissemination(group: ProcessGroup) -> None:
    """A barrier.

    No rank continues before all ranks have come: when this function returns on
    one rank, every rank must have called it. A barrier moves no data. What
    counts is that a message has come:
    its sender is here, and so is every rank of which its sender had heard.

    Given is a way to send to one rank while you receive from another:
    `exchange(outgoing, target, incoming, source, group)` puts what comes into
    `incoming`. Send a tensor of one element, such as `torch.zeros(1)`, and
    receive into another.

    Args:
        group: n ranks. Any n.

    Budget: ⌈log2 n⌉ steps, and in each one send and one receive.
    """
    raise NotImplementedError("not solved yet")
