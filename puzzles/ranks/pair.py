"""ranks.pair: One rank has it, another one needs it.

rankwise check ranks.pair
rankwise hint ranks.pair

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def hand_over(x: Tensor, source: int, target: int, group: ProcessGroup) -> None:
    """One rank has it, another one needs it.

    Every rank calls this function, with a tensor of its own. Afterwards `x` on
    the rank `target` holds what `x` on the rank `source` holds. On all other
    ranks nothing happens.

    `dist.get_rank(group)` says who you are,
    `dist.send(x, group=group, group_dst=...)` sends and
    `dist.recv(x, group=group, group_src=...)` fills `x` with what comes.

    Args:
        x: a contiguous tensor, of the same shape and dtype on every rank. On
            `target` it is overwritten.
        source: the rank of `group` that sends.
        target: the rank of `group` that receives. It may be the source: then
            there is nothing to do.
        group: the ranks that call this.

    Budget: one message.
    """
    raise NotImplementedError("not solved yet")
