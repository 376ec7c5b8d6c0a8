"""A parameter server whose gradients come in a known order, so that a run is repeated exactly."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def parameter_server(weight: Tensor, target: Tensor, order: Sequence[int], rate: float, group: ProcessGroup) -> None:
    """Train with gradients of weights that are late. Rank 0 is the server, all others are workers.

    Args:
        weight: [N]. On rank 0 the first weights, changed in place; on a worker a room for what it gets.
        target: [N], of this worker: its gradient is the difference of the weights that it has from it.
        order: whose gradient is the next that the server applies.
        rate: of learning.
        group: n ranks.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        dist.recv(weight, group=group, group_src=0)
        for _ in range(order.count(rank)):
            dist.send(weight - target, group=group, group_dst=0)
            dist.recv(weight, group=group, group_src=0)
        return
    for worker in range(1, n):
        dist.send(weight, group=group, group_dst=worker)
    gradient = torch.empty_like(weight)
    for worker in order:
        dist.recv(gradient, group=group, group_src=worker)
        weight -= rate * gradient
        dist.send(weight, group=group, group_dst=worker)
