"""expert_parallel.capacity: Choices that have room.

rankwise check expert_parallel.capacity
rankwise hint expert_parallel.capacity

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def room_for(
    chosen: Tensor, experts: int, capacity: float, group: ProcessGroup
) -> Tensor:
    """Choices that have room.

    With a capacity, experts get equally large tensors, whatever the router
    says. An expert takes its even share of the choices of a window, times a
    factor, rounded up: ceil(capacity · S · k / E) of S tokens with k choices
    each, among E experts. What has no room is dropped.

    Which choices are those? All first choices of the window come before all
    second ones, and among these the earlier token comes first. The window's
    tokens lie on n ranks, rank 0 has the first of them, rank 1 the next; how
    many each rank has may differ, and a rank may have none. The same choices
    must have room as if all tokens were on one rank: else the same model
    computes something else on another number of ranks.

    A rank cannot know this by itself. What does it have to know of the others?
    Less than all of their choices.

    `all_gather_single(out, x, group=group)` sees memory: `out` is contiguous,
    and has n times as many rows (dim 0) as `x`.
    `dist.all_gather(list of n tensors, x, group=group)` is the same for lists.

    Args:
        chosen: [T, k] of int64, the experts of this rank's tokens, the best
            first, none of them twice. T differs from rank to rank, and may be
            0; k is the same.
        experts: E, the same on all ranks.
        capacity: a factor, a float.
        group: n ranks. Any n.

    Returns: [T, k] of bool: whether a choice has room.

    Budget: one collective, and k · E whole numbers to each other rank.
    """
    raise NotImplementedError("not solved yet")
