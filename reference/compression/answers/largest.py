"""The largest elements of each rank, with their places."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def sum_of_largest(x: Tensor, k: int, group: ProcessGroup) -> Tensor:
    """The sum over ranks of what each sends: the k largest magnitudes of its `x`.

    Args:
        x: [N] float32 of this rank.
        k: 1 to N.
        group: n ranks. Any n.

    Returns:
        [N], the same on every rank; `x` has zeros where it was sent.
    """
    n = dist.get_world_size(group)
    places = x.abs().topk(k).indices.to(torch.int32)
    message = torch.stack([x[places.long()], places.view(torch.float32)])
    x[places.long()] = 0
    everyone = message.new_empty(n * message.numel())
    dist.all_gather_into_tensor(everyone, message.view(-1), group=group)
    total = torch.zeros_like(x)
    for values, where in everyone.view(n, 2, k):
        total[where.view(torch.int32).long()] += values
    return total
