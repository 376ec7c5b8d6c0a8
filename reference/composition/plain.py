"""Ranks in a box of several dimensions, in row-major order, as numbers in a tensor: the last axis counts fastest.

Ranks that differ by one along the last axis are neighbours. Nodes are filled with ranks in order, so the last axis is
the one that stays within a node. Along axis a, neighbours are as far apart as the axes after it have ranks together:
the stride of a tensor.
"""

from collections.abc import Collection, Sequence
from math import prod

import torch.distributed as dist
from torch import Tensor


def coordinates_of_a_rank(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Where a rank stands in a box.

    Args:
        rank: from 0 on.
        sizes: of the box, axis by axis; the last counts fastest.
    """
    found: list[int] = []
    for size in reversed(sizes):
        rank, here = divmod(rank, size)
        found.append(here)
    return tuple(reversed(found))


def rank_at(coordinates: Sequence[int], sizes: Sequence[int]) -> int:
    """The rank at these coordinates: the inverse of `coordinates_of_a_rank`."""
    rank = 0
    for here, size in zip(coordinates, sizes, strict=True):
        rank = rank * size + here
    return rank


def groups_along(axes: Collection[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups of ranks that differ along these axes alone.

    Args:
        axes: numbers of axes. All axes make one group of all ranks, none makes each rank its own.
        sizes: as for `coordinates_of_a_rank`.

    Returns:
        Groups in order of their first ranks, ranks in order.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(sizes)):
        here = coordinates_of_a_rank(rank, sizes)
        elsewhere = tuple(place for axis, place in enumerate(here) if axis not in axes)
        groups.setdefault(elsewhere, []).append(rank)
    return [tuple(group) for group in groups.values()]


def sum_along(x: Tensor, axes: Collection[int], sizes: Sequence[int]) -> None:
    """Sum `x` over the ranks that differ along these axes alone, in place.

    To sum more than once, keep the group: making one takes longer than most sums.

    Args:
        x: of the same shape and dtype on every rank.
        axes, sizes: as for `groups_along`. All ranks of the world stand in the box, and all call this.
    """
    mine = None
    for members in groups_along(axes, sizes):
        group = dist.new_group(list(members))  # all ranks make all groups, in one order
        if dist.get_rank() in members:
            mine = group
    dist.all_reduce(x, group=mine)
