"""composition.groups_along: The groups of an axis.

rankwise check composition.groups_along
rankwise hint composition.groups_along

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist

from reference.composition.plain import coordinates_of_a_rank


def groups_along(
    axes: Collection[int], sizes: Sequence[int]
) -> list[tuple[int, ...]]:
    """The groups of an axis.

    Ranks that stand in the same place on all axes but some belong together
    along these: they sum gradients (data), share matrices (tensor), pass on
    activations (pipe). In a mesh of 2 x 2 x 2, the axes counted from 0:

        along axis 2          (0, 1) (2, 3) (4, 5) (6, 7)
        along axis 1          (0, 2) (1, 3) (4, 6) (5, 7)
        along axes 0 and 1    (0, 2, 4, 6) (1, 3, 5, 7)

    The last are those whose losses add up: they read different windows, or have
    different stages.

    Args:
        axes: numbers of axes. With all of them all ranks are together, with
            none each rank is alone.
        sizes: ranks along each axis, the outermost first. The last axis counts
            fastest.

    Returns: a list of tuples: groups in order of their first rank, the ranks of
    each in order.

    Budget: one look at each rank. Comparing every rank with every other takes
    too long for thousands.
    """
    raise NotImplementedError("not solved yet")
