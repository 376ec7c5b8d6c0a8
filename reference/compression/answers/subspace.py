"""A step of PowerSGD: two thin matrices are summed instead of a large one."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.plain_memory import orthogonalise


def power_sgd(gradient: Tensor, residual: Tensor, q: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of `gradient` over ranks, to rank R.

    Args:
        gradient: [A, B] of this rank.
        residual: [A, B] of this rank, what it did not bring to the sums before; updated in place.
        q: [B, R], the same on every rank; updated in place: there the next step begins.
        group: n ranks. Any n.

    Returns:
        [A, B], the same on every rank.
    """
    residual += gradient
    p = residual @ q
    dist.all_reduce(p, group=group)
    orthogonalise(p)
    mine = residual.T @ p
    residual -= p @ mine.T
    q.copy_(mine)
    dist.all_reduce(q, group=group)
    return p @ q.T
