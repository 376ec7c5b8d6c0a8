"""Mean and variance of all clients' examples, from those of each: variances alone do not know how means differ."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def pool(mean: Tensor, variance: Tensor, examples: int, group: ProcessGroup) -> None:
    """Replace a client's statistics by those of the examples of all clients together, in place.

    Args:
        mean: [C], over this client's examples.
        variance: [C], the mean squared distance from it.
        examples: that this client has, 1 or more.
        group: n ranks, a client each.
    """
    said = torch.cat([mean, variance + mean.square(), mean.new_ones(1)]) * examples
    dist.all_reduce(said, group=group)
    of_all, squares = (said[:-1] / said[-1]).chunk(2)
    mean.copy_(of_all)
    variance.copy_(squares - of_all.square())
