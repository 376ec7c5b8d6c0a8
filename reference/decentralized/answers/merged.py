"""Branch-Train-MiX: feed-forwards of branches become experts, and all else is averaged (Sukhbaatar et al. 2024)."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def merge(feed_forward: Tensor, rest: Tensor, group: ProcessGroup) -> Tensor:
    """Merge the branches of all ranks into one mixture of experts, on every rank.

    Args:
        feed_forward: [F], of this rank's branch. It stays.
        rest: [R], all other weights of it; becomes the mean of all branches, in place.
        group: n ranks, a branch each.

    Returns:
        [n, F]: the experts, that of group rank 0 first.
    """
    n = dist.get_world_size(group)
    dist.all_reduce(rest, group=group)
    rest /= n
    experts = [torch.empty_like(feed_forward) for _ in range(n)]
    dist.all_gather(experts, feed_forward, group=group)
    return torch.stack(experts)
