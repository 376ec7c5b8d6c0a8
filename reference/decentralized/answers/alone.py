"""Islands that train alone and meet: local SGD, and after how many steps."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.decentralized.parabola import inner_step


def local_sgd(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    rounds: int,
    inner_steps: int,
    group: ProcessGroup,
) -> None:
    """Take `inner_steps` steps alone, then the mean of all islands, so many `rounds`. Updates `weight` in place."""
    for _ in range(rounds):
        for _ in range(inner_steps):
            inner_step(weight, curvature, target, rate)
        dist.all_reduce(weight, group=group)
        weight /= dist.get_world_size(group)


def meet_after_h_steps(
    weight: Tensor, curvature: Tensor, target: Tensor, rate: float, steps: int, inner_steps: int, group: ProcessGroup
) -> list[int]:
    """Take `steps` steps, with a mean of all islands after every `inner_steps` of them.

    Updates `weight` in place. Returns after how many steps islands met.
    """
    met = []
    for taken in range(1, steps + 1):
        inner_step(weight, curvature, target, rate)
        if taken % inner_steps == 0:
            dist.all_reduce(weight, group=group)
            weight /= dist.get_world_size(group)
            met.append(taken)
    return met
