"""expert_parallel.counts_first: Counts before rows.

rankwise check expert_parallel.counts_first
rankwise hint expert_parallel.counts_first

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def counts_first(
    chosen: Tensor, experts: int, group: ProcessGroup
) -> tuple[list[int], list[int], Tensor]:
    """Counts before rows.

    Rank r has the experts from r · E/n to (r+1) · E/n - 1. Each choice of a
    token is a row that travels to the rank of its expert. But a receiver must
    make room for what comes, so it must know how many rows that are. No rank
    knows this of another one: which experts tokens choose is seen when the
    router has run, and differs in each layer and step.

    So ranks tell each other first, in an all-to-all of counts. It is small;
    what it costs is latency, and that nothing more can be sent until it is
    there. Let each rank say at once how many rows come for *each expert*: rows
    that arrive have to be regrouped by expert, and for that the number of rows
    from each rank is not enough.

    `dist.all_to_all_single(out, x, group=group)` gives the j-th n-th of the
    rows (dim 0) of `x` to rank j, and puts what comes from rank i into the i-th
    n-th of `out`. Both are contiguous.

    Args:
        chosen: [T, k] of int64, the experts of this rank's tokens. T may be 0,
            and differ from rank to rank.
        experts: E; n divides it.
        group: n ranks. Any n.

    Returns: three things.
        sent: n ints, how many rows this rank sends to each rank, itself
            included.
        received: n ints, how many rows it receives from each.
        counts: [n, E/n] of int64, how many rows come from each rank for each
            expert of this rank.

    Budget: one collective, and E/n whole numbers to each other rank.
    """
    raise NotImplementedError("not solved yet")
