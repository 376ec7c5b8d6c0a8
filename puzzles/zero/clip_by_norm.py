"""zero.clip_by_norm: Clip by the norm of the whole gradient.

rankwise check zero.clip_by_norm
rankwise hint zero.clip_by_norm

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def clip_by_global_norm(
    shards: list[Tensor], lengths: list[int], limit: float, group: ProcessGroup
) -> Tensor:
    """Clip by the norm of the whole gradient.

    Gradient clipping looks at all gradients as one long vector. If it is longer
    than `limit`, all of it is scaled to that length; if not, it stays as it is.
    Exactly, without the 1e-6 that torch adds to the norm. Now each rank has
    only its shards. If each clipped by the norm of what it has, every shard
    would be scaled by another factor, and the vector would point elsewhere.

    Args:
        shards: of each gradient (summed over ranks before), this rank's n-th.
            Scale them in place.
        lengths: how many elements each gradient has. Where n does not divide
            that, the shards of the last ranks end in padding, or are nothing
            but padding. It was never filled: there may be anything in it, and
            what becomes of it does not matter.
        limit: the longest that all gradients together may be.
        group: n ranks. Any n.

    Returns: the norm of all gradients before they were scaled, a scalar tensor
    in float64, the same on every rank.

    Budget: one number is all that ranks need to tell each other: 2(n-1) steps,
    at most 16 bytes sent.
    """
    raise NotImplementedError("not solved yet")
