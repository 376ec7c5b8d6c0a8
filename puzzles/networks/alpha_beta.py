"""networks.alpha_beta: A line through measured times.

rankwise check networks.alpha_beta
rankwise hint networks.alpha_beta

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def alpha_beta(
    sizes: Sequence[float], seconds: Sequence[float]
) -> tuple[float, float]:
    """A line through measured times.

    You have measured how long messages of several sizes take one way. On paper
    a message of b bytes takes α + b/β seconds. Find the α and β for which the
    relative errors are smallest: minimise, over all measured (b, t), the sum of
    ((α + b/β) / t - 1)².

    Why relative? A message of 8 B takes microseconds and one of 40 MB takes
    milliseconds. Least squares without weights would give the large times all
    the say, and α would be what is left over from their noise.

    Args:
        sizes: bytes of each message, at least two different ones.
        seconds: how long each took, one way.

    Returns: (α in seconds, β in bytes per second).

    Budget: sums over the points, and a formula.
    """
    raise NotImplementedError("not solved yet")
