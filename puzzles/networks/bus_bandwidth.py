"""networks.bus_bandwidth: Bus bandwidth from a time.

rankwise check networks.bus_bandwidth
rankwise hint networks.bus_bandwidth

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def bus_bandwidth(ranks: int, size: float, seconds: float) -> float:
    """Bus bandwidth from a time.

    An all-reduce of `size` bytes took `seconds` on n ranks. Size over time is
    what nccl-tests calls algorithm bandwidth. It says how fast one is served,
    and it falls as ranks are added, even where every link is as busy as before:
    most of what a link carries is there because of the others.

    Bus bandwidth says how fast the links are. It is the number of bytes that
    each link of a ring must carry, over the time. Compared with what the
    hardware is sold as, it tells how much of it you got, on any number of
    ranks.

    Args:
        ranks: n, at least 1. With n = 1 nothing is sent.
        size: bytes of the tensor that each rank brings.
        seconds: from the first rank's call to the last one's return.

    Returns: bytes per second.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
