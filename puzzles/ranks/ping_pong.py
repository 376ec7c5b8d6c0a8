"""ranks.ping_pong: Latency and bandwidth of a link.

rankwise check ranks.ping_pong
rankwise hint ranks.ping_pong

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def ping_pong(
    small: int,
    large: int,
    rounds: int,
    clock: Callable[[], float],
    group: ProcessGroup,
) -> tuple[float, float] | None:
    """Latency and bandwidth of a link.

    A message of b bytes takes α + b/β seconds: α is the latency, β the
    bandwidth. Measure both between ranks 0 and 1 of `group`: send a message
    there and back, many times, with a small and with a large one, and look at
    `clock()` on one side. The other side has another clock, which is of no use
    to you.

    Now and then a round trip takes much longer, because another program uses
    the link, and the very first one because the connection is opened. Don't let
    those count: warm up with one round trip of each size, time each of the next
    `rounds`, and take a value that a few slow ones do not move, such as their
    median.

    Args:
        small: bytes of the small message.
        large: bytes of the large one.
        rounds: round trips to time with each size.
        clock: the time in seconds, like `time.perf_counter`. (It is checked
            with a clock that shows the time on a modelled link, so that what
            you must find is known exactly.)
        group: at least two ranks. Those beyond the second have nothing to do.

    Returns: (α in seconds, β in bytes per second) on rank 0, None on the
    others.

    Budget: 1 + rounds round trips with each size.
    """
    raise NotImplementedError("not solved yet")
