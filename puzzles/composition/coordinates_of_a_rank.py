"""composition.coordinates_of_a_rank: Where a rank stands in a mesh.

rankwise check composition.coordinates_of_a_rank
rankwise hint composition.coordinates_of_a_rank

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def coordinates_of_a_rank(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Where a rank stands in a mesh.

    A mesh is a box of ranks with an axis for each kind of parallelism. Ranks
    are seated one after another, and the last axis counts fastest, as elements
    lie in a tensor. In a mesh of 2 pipeline stages, 2 replicas and 2
    tensor-parallel ranks:

        rank    0      1      2      3      4      5      6      7
        stands  0,0,0  0,0,1  0,1,0  0,1,1  1,0,0  1,0,1  1,1,0  1,1,1

    So ranks that differ by one in the last number are neighbours, and share a
    node.

    Args:
        rank: from 0 on.
        sizes: ranks along each axis, the outermost first.

    Returns: the rank's place on each axis, a tuple as long as `sizes`.

    Budget: a few lines for each axis. Every one of 16,384 ranks asks this first
    of all.
    """
    raise NotImplementedError("not solved yet")
