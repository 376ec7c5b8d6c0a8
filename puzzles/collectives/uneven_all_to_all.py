"""collectives.uneven_all_to_all: All-to-all of uneven parts.

rankwise check collectives.uneven_all_to_all
rankwise hint collectives.uneven_all_to_all

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


def uneven(
    x: Tensor,
    out: Tensor,
    in_splits: list[int],
    out_splits: list[int],
    group: ProcessGroup,
) -> None:
    """All-to-all of uneven parts.

    Tokens on their way to experts: one expert is popular, another is not. Every
    rank has some rows for every rank, the first in_splits[0] of them for rank
    0, the next in_splits[1] for rank 1. Afterwards `out` holds what came, rank
    0's rows first.

    Given is a way to send to one rank while you receive from another:
    `exchange(outgoing, target, incoming, source, group)` puts what comes into
    `incoming`. Empty tensors travel, too.

    Args:
        x: contiguous, of shape (sum(in_splits), width). Leave it as it is.
        out: contiguous, of shape (sum(out_splits), width); the place for what
            comes.
        in_splits: rows for each rank. Zeros are fine.
        out_splits: rows from each rank: what its in_splits say for this one.
        group: n ranks. Any n.

    Budget: n-1 steps; only rows for others are sent, each once. No memory
    besides what is there.
    """
    raise NotImplementedError("not solved yet")
