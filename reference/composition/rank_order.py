"""Ranks in a box of several dimensions, in row-major order, as numbers in a tensor: the last axis counts fastest.

Ranks that differ by one along the last axis are neighbours. Nodes are filled with ranks in order, so the last axis is
the one that stays within a node. Along axis a, neighbours are as far apart as the axes behind it have ranks together:
the stride of a tensor.
"""

from collections.abc import Collection, Sequence
from math import prod


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
        axes: numbers of axes. All axes make one group of everybody, none makes each rank its own.
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
