"""A step that is not finite on one rank is left out on all: whether it is rides in the gradient's message."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def train(weight: Tensor, gradients: Sequence[Tensor], rate: float, group: ProcessGroup) -> list[int]:
    """Update `weight` in place, step by step, with the mean of all ranks' gradients.

    Args:
        weight: [N], the same on every rank.
        gradients: [N] of this rank, one for each step; infinite or NaN here and there.
        rate: of learning.
        group: n ranks.

    Returns:
        The steps that were left out.
    """
    n, skipped = dist.get_world_size(group), []
    for step, gradient in enumerate(gradients):
        bad = not gradient.isfinite().all()
        brought = torch.zeros_like(gradient) if bad else gradient
        said = torch.cat([brought, gradient.new_tensor([float(bad)])])
        dist.all_reduce(said, group=group)
        if said[-1]:
            skipped.append(step)
        else:
            weight -= rate * said[:-1] / n
    return skipped
