"""A step that counts on all replicas or on none: the number of those that are well rides in the gradient's message."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def vote_on_a_step(weight: Tensor, gradient: Tensor, good: bool, rate: float, least: int, group: ProcessGroup) -> int:
    """Update `weight` in place with the mean gradient of the replicas that have one, if they are enough.

    Args:
        weight: [N], equal on all ranks.
        gradient: [N], of this replica; means nothing where it is not good.
        good: whether this replica has computed its gradient.
        rate: of learning.
        least: so many good replicas make a step.
        group: n ranks, a replica each.

    Returns:
        How many gradients counted: 0 where no rank has taken the step.
    """
    brought = gradient if good else torch.zeros_like(gradient)
    said = torch.cat([brought, brought.new_tensor([float(good)])])
    dist.all_reduce(said, group=group)
    count = int(said[-1])
    if count < least:
        return 0
    weight -= rate * said[:-1] / count
    return count
