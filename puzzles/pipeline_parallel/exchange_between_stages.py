"""pipeline_parallel.exchange_between_stages:
Between two stages, in both directions.

rankwise check pipeline_parallel.exchange_between_stages
rankwise hint pipeline_parallel.exchange_between_stages

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def exchange_between_stages(
    activation: Tensor | None, gradient: Tensor | None, group: ProcessGroup
) -> tuple[Tensor | None, Tensor | None]:
    """Between two stages, in both directions.

    In the middle of a step of 1F1B every rank has just gone forward with one
    micro-batch and backward with another. It has an activation for the rank
    after it, which that needs for its next forward, and a gradient for the rank
    before it, which that needs for its next backward. And it needs the same of
    them.

        rank r-1    -- activation ->    rank r      -- activation ->    rank r+1
                    <-- gradient --                 <-- gradient --

    A send may block until its receiver receives. So if all ranks send first,
    all wait forever. If all receive first, too. If they take turns from the
    first rank to the last, none waits forever, and all wait for all. Let
    everything travel at once.

    With `isend` and `irecv` alone this can hang on NCCL, which runs what is
    said between two ranks in the order in which it was said; this check cannot
    see that. `dist.batch_isend_irecv` says all of it together.

    Args:
        activation: [B, D], for the next rank; None on the last rank. Leave it
            as it is.
        gradient: [B, D], for the rank before; None on the first rank. Leave it
            as it is.
        group: p ranks in a row. Any p. All tensors have the same shape and
            dtype.

    Returns: (the activation of the rank before, or None; the gradient of the
    next rank, or None).

    Budget: one step. Each rank sends what it was given, once.
    """
    raise NotImplementedError("not solved yet")
