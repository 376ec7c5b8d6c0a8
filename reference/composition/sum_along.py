"""A sum along some axes of a mesh, with process groups that are made for it."""

from collections.abc import Collection, Sequence

import torch.distributed as dist
from torch import Tensor

from .rank_order import groups_along


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
