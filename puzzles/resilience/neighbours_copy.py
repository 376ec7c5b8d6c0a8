"""resilience.neighbours_copy: The neighbour's copy.

rankwise check resilience.neighbours_copy
rankwise hint resilience.neighbours_copy

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def take_over(
    state: Tensor, copy: Tensor, lost: list[int], node: int, group: ProcessGroup
) -> bool:
    """The neighbour's copy.

    Each rank keeps what it has after a step in its own memory, and a copy of it
    in the memory of another node, since a node may lose its power with all that
    it holds: the state of rank r is also on rank (r + node) % n. So each rank
    holds two things, its own state and the copy of another rank's.

    Now some ranks have died, and new processes have their numbers. They have
    room for both, and nothing in it. Give them what the dead ones had, so that
    all is as before, and the next loss finds a copy of everything again. If the
    state of a rank is nowhere any more, none can continue: then all must say
    so, and no rank may wait for another.

    Args:
        state: [3, N], weights and two moments of this rank. To be filled on new
            ranks.
        copy: [3, N], the state of rank (r - node) % n. To be filled on new
            ranks.
        lost: the group ranks that are new, the same list on all ranks; it may
            be empty.
        node: how many ranks a node has. Node k has ranks k · node to (k + 1) ·
            node - 1.
        group: n ranks, a multiple of `node`.

    Returns: True on all ranks; False on all ranks if a state is lost, and then
    nothing may be sent or changed.

    Budget: one step, all messages in flight at once. What is sent goes to new
    ranks.
    """
    raise NotImplementedError("not solved yet")
