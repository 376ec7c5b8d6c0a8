"""The trimmed mean among ranks that lie, each of which adds up one chunk of all gradients."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def trimmed_mean(gradient: Tensor, liars: int, group: ProcessGroup) -> Tensor:
    """Of each number the mean of what all ranks say, without the `liars` largest and the `liars` smallest.

    Args:
        gradient: [N], as this rank says. n divides N.
        liars: fewer than n / 2.
        group: n ranks.

    Returns:
        [N], the same on every rank.
    """
    n = dist.get_world_size(group)
    said = torch.empty_like(gradient)
    dist.all_to_all_single(said, gradient, group=group)
    ordered = said.view(n, -1).sort(0).values
    own = ordered[liars : n - liars].mean(0)
    pieces = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(pieces, own, group=group)
    return torch.cat(pieces)
