"""resilience.name_the_straggler: Name the straggler.

rankwise check resilience.name_the_straggler
rankwise hint resilience.name_the_straggler

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping, Sequence


def name_the_straggler(
    came: Sequence[Mapping[int, float]], left: Sequence[Mapping[int, float]]
) -> tuple[int, int, float]:
    """Name the straggler.

    A step takes longer than it should, and every rank says that it waits for
    others. A recorder has noted when each rank came to each collective call,
    and when it left it. Calls are of groups: a rank of tensor parallelism that
    is slow lets its neighbours come late to the next sum over all ranks, and
    they are not to blame.

    What a rank does between two calls is its own work: from when it left its
    call before, or from 0, until it came to this one. Its excess at a call is
    its own work less the median of the own work of all ranks in the call, where
    it is more, else 0. Of an even number of ranks the median is the lower of
    the two in the middle (`statistics.median_low`).

    Args:
        came: of each call, in order, a dict: the moments in seconds at which
            its ranks came to it.
        left: of each call, a dict: the moments at which they left it.

    Returns: (rank, call, seconds): the rank whose excess is largest in all
    calls together (of several, the lowest rank); the number of the call where
    it is largest (the first of several); and its excess in all.

    Budget: lines that grow with the number of times that a rank comes to a
    call.
    """
    raise NotImplementedError("not solved yet")
