"""ranks.find_the_deadlock: Find the deadlock, and mend it.

rankwise check ranks.find_the_deadlock
rankwise hint ranks.find_the_deadlock

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def look_both_ways(x: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Find the deadlock, and mend it.

    The ranks of `group` stand in a line. Each wants to know what its left and
    its right neighbour hold; beyond the ends of the line are zeros. Every rank
    turns to the right first, then to the left: send, receive, send, receive. It
    hangs. Check it as it is and read which rank waits for which, then mend it.

    Args:
        x: a contiguous tensor, of the same shape and dtype on every rank. Leave
            it as it is.
        group: n ranks. With n = 1 there are no neighbours.

    Returns: (left, right), two new tensors like `x`.

    Budget: at most 4 steps, on however many ranks. One is possible.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    if rank < n - 1:
        dist.send(x, group=group, group_dst=rank + 1)
        dist.recv(right, group=group, group_src=rank + 1)
    if rank > 0:
        dist.send(x, group=group, group_dst=rank - 1)
        dist.recv(left, group=group, group_src=rank - 1)
    return left, right
