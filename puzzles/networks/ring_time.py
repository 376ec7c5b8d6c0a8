"""networks.ring_time: How long a ring all-reduce takes.

rankwise check networks.ring_time
rankwise hint networks.ring_time

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def ring_time(ranks: int, size: float, alpha: float, beta: float) -> float:
    """How long a ring all-reduce takes.

    A message of b bytes takes α + b/β seconds. A ring all-reduce of `size`
    bytes takes 2(n-1) steps, one after the other; in each, every rank sends one
    chunk to the right. How many seconds until the last rank is done?

    Args:
        ranks: n, at least 1.
        size: bytes of the tensor that each rank brings; n chunks of equal size.
        alpha: α, seconds that a message takes however small it is.
        beta: β, bytes per second of a link, in each direction at the same time.

    Returns: seconds.

    Budget: a formula, not a loop over the steps of 16,384 ranks.
    """
    raise NotImplementedError("not solved yet")
