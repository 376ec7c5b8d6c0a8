"""A step that is not finite on one rank is left out on all: the sum itself tells each of them."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def train(weight: Tensor, gradients: Sequence[Tensor], rate: float, group: ProcessGroup) -> list[int]:
    """Update `weight` in place, step by step, with the mean of all ranks' gradients.

    Args:
        weight: [N], the same on every rank.
        gradients: [N] of this rank, one for each step; infinite or NaN here and there. They are overwritten.
        rate: of learning.
        group: n ranks.

    Returns:
        The steps that were left out.
    """
    n, skipped = dist.get_world_size(group), []
    for step, gradient in enumerate(gradients):
        dist.all_reduce(gradient, group=group)
        if gradient.isfinite().all():
            weight -= rate * gradient / n
        else:
            skipped.append(step)
    return skipped
