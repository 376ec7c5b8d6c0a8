"""ranks.swap: Swap without a deadlock.

rankwise check ranks.swap
rankwise hint ranks.swap

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def swap(x: Tensor, partner: int, group: ProcessGroup) -> Tensor:
    """Swap without a deadlock.

    Ranks come in pairs, and the two of a pair swap their tensors: send `x` to
    `partner` and return what `partner` sends to you. Both run the same text at
    the same time.

    Args:
        x: a contiguous tensor, of the same shape and dtype on every rank. Leave
            it as it is.
        partner: the rank of `group` to swap with; your partner's partner is
            you. A rank that is left over is its own partner.
        group: the ranks that call this.

    Returns: a new tensor like `x`.

    Budget: one step. A link carries both directions at once, so neither message
    may wait for the other.
    """
    raise NotImplementedError("not solved yet")
