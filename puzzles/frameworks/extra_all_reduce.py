"""frameworks.extra_all_reduce: Find the extra all-reduce.

rankwise check frameworks.extra_all_reduce
rankwise hint frameworks.extra_all_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def extra_all_reduces(
    said: Sequence[tuple[str, tuple[int, ...], int, int]]
) -> list[int]:
    """Find the extra all-reduce.

    A step sends more than the formula says. Its trace has for each call the
    operation, the ranks, and fingerprints of what this rank has brought and of
    what came out: equal tensors have equal fingerprints, others have others.
    Which all-reduces could be left out?

    One could, if an earlier one over the very same ranks was brought the same:
    the sum was there already. That is what happens to a gradient that DTensor
    leaves as a partial sum, which each operation of the optimizer sums anew.
    And one could, if what it is brought is what an earlier one has given, over
    these ranks or over more: all of them have the same already, and the sum
    counts it several times. A sum along one axis and then along another is no
    such thing: it takes both to make the sum over all.

    Args:
        said: the calls in order, each (operation, ranks, fingerprint before,
            fingerprint after); ranks are a tuple.

    Returns: a list of the places in `said`, ascending, of the all-reduces that
    could be left out.

    Budget: one look at each call.
    """
    raise NotImplementedError("not solved yet")
