"""ranks.take_turns: Ranks speak in order.

rankwise check ranks.take_turns
rankwise hint ranks.take_turns

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def take_turns(speak: Callable[[], None], group: ProcessGroup) -> None:
    """Ranks speak in order.

    Every rank has something to say, by calling `speak()`: a line of a log, a
    file that all write to, a download that only one may make at a time. Rank 0
    speaks first. Rank r speaks after rank r-1 has.

    What is checked is not the clock but the messages: one must lead from each
    turn to the next. A program that speaks in order because the ranks happen to
    be quick in the right way today does not pass.

    Args:
        speak: call it once on every rank.
        group: the ranks that take turns.

    Budget: n-1 messages, one after the other, of at most 8 bytes each.
    """
    raise NotImplementedError("not solved yet")
