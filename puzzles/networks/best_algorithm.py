"""networks.best_algorithm: Which all-reduce for which size.

rankwise check networks.best_algorithm
rankwise hint networks.best_algorithm

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def best_algorithm(ranks: int, size: float, alpha: float, beta: float) -> str:
    """Which all-reduce for which size.

    Three ways to all-reduce `size` bytes on n ranks, where a message of b bytes
    takes α + b/β seconds:

    "ring": 2(n-1) steps, size/n bytes in each.
    "recursive doubling": log2 n steps, the whole tensor in each.
    "halving-doubling": log2 n steps with 1/2, 1/4, 1/8, ... of the tensor, and
    the same way back.

    The last two need n to be a power of two. Otherwise let p be the largest
    power of two below n: each rank beyond p first gives its whole tensor to a
    partner, the first p continue among themselves, and in the end the partners
    give the sum back. That is two steps more, with the whole tensor in each.
    Which of the three is fastest?

    Args:
        ranks: n, at least 2.
        size: bytes of the tensor that each rank brings.
        alpha: α, seconds that a message takes however small it is.
        beta: β, bytes per second of a link.

    Returns: its name, as above. Where two are equally fast, either will do.

    Budget: a formula for each, not a loop over the steps of 16,384 ranks.
    """
    raise NotImplementedError("not solved yet")
