"""composition.sum_along: Make the groups, and sum in yours.

rankwise check composition.sum_along
rankwise hint composition.sum_along

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.composition.plain import groups_along


def sum_along(x: Tensor, axes: Collection[int], sizes: Sequence[int]) -> None:
    """Make the groups, and sum in yours.

    `dist.new_group(ranks)` makes a process group of some ranks of the world.
    Two rules, which frameworks follow for you: *every* rank of the world calls
    it for *every* group, also for those that it is not in; and all ranks do so
    in the same order. A rank that is not in a group gets something back that it
    cannot talk in.

    Make the groups of a mesh along some axes, and sum `x` over the one that
    this rank is in, in place. All ranks of the world stand in the mesh.

    Args:
        x: whole numbers, on every rank other ones.
        axes: numbers of axes, as for `groups_along`, which you have: [(0, 1),
            (2, 3), ...].
        sizes: ranks along each axis, the outermost first.

    Budget: one all-reduce, among those that it concerns.
    """
    raise NotImplementedError("not solved yet")
