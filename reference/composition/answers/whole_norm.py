"""The norm of all gradients of a model that lies on ranks along several axes: each element counts once.

Ranks that are replicas of each other hold equal gradients. So a rank may count a share of each square, one over the
number of replicas, and a single all-reduce over all ranks makes the whole sum: no rank has to know which it is, and no
group is needed but that of all ranks. `reference.composition.ledger` counts on the first rank of each axis instead.

A norm of other size with other degrees was DeepSpeed#5145.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def norm_over_all_axes(
    gradients: Sequence[Tensor], split: Sequence[tuple[str, ...]], sizes: Mapping[str, int], group: ProcessGroup
) -> Tensor:
    """The norm of the gradients of a whole model, a float64 scalar that is the same on every rank.

    Args:
        gradients: what this rank has, already summed over ranks with other tokens; of any shapes, perhaps none.
        split: for each gradient, the axes along which ranks hold different elements. Along all others they are equal.
        sizes: ranks along each axis of two meshes over the same ranks, such as dp and tp, edp and ep.
        group: all ranks of the mesh.
    """
    square = torch.zeros((), dtype=torch.float64)
    for gradient, axes in zip(gradients, split, strict=True):
        replicas = dist.get_world_size(group) // prod(sizes[axis] for axis in axes)
        square += gradient.double().square().sum() / replicas
    dist.all_reduce(square, group=group)
    return square.sqrt()
