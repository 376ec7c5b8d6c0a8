"""Islands that meet now and then, in their smallest form: local SGD, and DiLoCo as its paper writes it."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Inner = Callable[[int], None]
"""Takes the inner step of this number: it changes the parameters, with this island's data and its own optimizer."""


@torch.no_grad()
def local_sgd(parameters: list[Tensor], inner_step: Inner, rounds: int, inner_steps: int, group: ProcessGroup) -> None:
    """Train alone for some steps, then take the mean of all islands, again and again.

    Stich 2019, "Local SGD converges fast and communicates little", arXiv:1805.09767.

    Args:
        parameters: of this island, equal on all islands at the beginning. Updated in place.
        inner_step: of this island.
        rounds: how many.
        inner_steps: of a round: H.
        group: a rank of each island.
    """
    for step in range(rounds * inner_steps):
        inner_step(step)
        if (step + 1) % inner_steps == 0:
            for parameter in parameters:
                dist.all_reduce(parameter, group=group)
                parameter /= group.size()


@torch.no_grad()
def diloco(
    parameters: list[Tensor],
    inner_step: Inner,
    rounds: int,
    inner_steps: int,
    group: ProcessGroup,
    rate: float = 0.7,
    momentum: float = 0.9,
) -> None:
    """Let an outer optimizer take a step with what a round has changed, the mean over islands.

    Douillard et al. 2023, "DiLoCo", arXiv:2311.08105, algorithm 1: AdamW inside, SGD with Nesterov momentum outside.

    Args:
        parameters, inner_step, rounds, inner_steps, group: as for `local_sgd`.
        rate, momentum: of the outer optimizer.
    """
    anchors = [parameter.clone() for parameter in parameters]  # a copy: inner steps must not move it
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    for number in range(rounds):
        for step in range(number * inner_steps, (number + 1) * inner_steps):
            inner_step(step)
        for parameter, anchor, velocity in zip(parameters, anchors, velocities, strict=True):
            gradient = anchor - parameter  # old - new: a step downhill along it leads to where the islands went
            dist.all_reduce(gradient, group=group)
            gradient /= group.size()
            nesterov(anchor, gradient, velocity, rate, momentum)
            parameter.copy_(anchor)


def nesterov(parameter: Tensor, gradient: Tensor, velocity: Tensor, rate: float, momentum: float) -> None:
    """A step of SGD with Nesterov momentum, in place, as `torch.optim.SGD` takes it."""
    velocity.mul_(momentum).add_(gradient)
    parameter.sub_(rate * (gradient + momentum * velocity))
