"""The outer step: what a round has changed as a gradient, and Nesterov momentum on it."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.decentralized.parabola import inner_step


def pseudo_gradient(weight: Tensor, anchor: Tensor, group: ProcessGroup) -> Tensor:
    """The mean over islands of what a round has changed, as a gradient: `weight` and `anchor` [N] stay as they are."""
    gradient = anchor - weight
    dist.all_reduce(gradient, group=group)
    return gradient / dist.get_world_size(group)


def outer_nesterov(
    anchor: Tensor, velocity: Tensor, gradient: Tensor, rate: float, momentum: float, group: ProcessGroup
) -> None:
    """A step of SGD with Nesterov momentum from `anchor`, with the mean of all islands' gradients.

    Updates `anchor` and `velocity` in place, on every rank alike.
    """
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    velocity.mul_(momentum).add_(mean)
    anchor.sub_(rate * (mean + momentum * velocity))


def diloco_whole(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    rounds: int,
    inner_steps: int,
    outer_rate: float,
    momentum: float,
    group: ProcessGroup,
) -> None:
    """DiLoCo with SGD inside, and Nesterov momentum outside. Updates `weight` in place."""
    anchor, velocity = weight.clone(), weight.new_zeros(weight.shape)
    for _ in range(rounds):
        for _ in range(inner_steps):
            inner_step(weight, curvature, target, rate)
        gradient = anchor - weight
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)
        velocity = momentum * velocity + gradient
        anchor = anchor - outer_rate * (gradient + momentum * velocity)
        weight.copy_(anchor)


def a_run_that_climbs(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    rounds: int,
    inner_steps: int,
    outer_rate: float,
    group: ProcessGroup,
) -> None:
    """DiLoCo with plain SGD inside and outside. Updates `weight` in place."""
    anchor = weight.clone()
    for _ in range(rounds):
        for _ in range(inner_steps):
            inner_step(weight, curvature, target, rate)
        gradient = anchor - weight
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)
        anchor -= outer_rate * gradient
        weight.copy_(anchor)
