"""composition.norm_over_all_axes: The norm of the whole model.

rankwise check composition.norm_over_all_axes
rankwise hint composition.norm_over_all_axes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def norm_over_all_axes(
    gradients: Sequence[Tensor],
    split: Sequence[tuple[str, ...]],
    sizes: Mapping[str, int],
    group: ProcessGroup,
) -> Tensor:
    """The norm of the whole model.

    Gradients are clipped by the norm of the whole model. Each rank has parts of
    it, after all sums over ranks with other tokens: its rows of a matrix, which
    other ranks along dp have as well; a norm's gradient, which all ranks of a
    stage have; some experts, which stand on ranks of a mesh of their own. If
    each rank adds up the squares of what it has, replicas count again and
    again: and with other degrees, the same model has another norm
    (DeepSpeed#5145). Each element counts once.

    The ranks stand in two meshes, pp x dp x tp and pp x edp x ep, the outermost
    first. Along the axes of `split` ranks hold different elements; along all
    others of the mesh, their gradients are equal.

    Args:
        gradients: tensors in float64, what this rank has. It may have none, and
            some may be empty.
        split: for each of them the names of the axes that split it: ("pp",
            "tp") for a matrix of a stage, ("pp",) for a norm, ("pp", "ep") for
            experts, with "dp" or "edp" besides where they are in shards.
        sizes: ranks along "pp", "dp", "tp", "edp" and "ep". pp dp tp = pp edp
            ep = n.
        group: the n ranks of the mesh, in order. Any n.

    Returns: the norm, a scalar tensor in float64, the same on every rank.

    Budget: one all-reduce of one number.
    """
    raise NotImplementedError("not solved yet")
