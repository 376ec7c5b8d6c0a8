"""decentralized.a_run_that_climbs: A run that climbs.

rankwise check decentralized.a_run_that_climbs
rankwise hint decentralized.a_run_that_climbs

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.decentralized.parabola import inner_step


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
    """A run that climbs.

    Two islands, H = 4, plain SGD inside and outside. Within a round the loss
    falls; after each meeting it is higher than before. On one island alone it
    climbs as well, so it is not the network. Two mistakes are in these lines,
    and both were in published engines: one goes uphill, and one lets the anchor
    move with what trains. Mend both.

    `inner_step(weight, curvature, target, rate)` is given, and right: an
    island's own step, in place.

    Args:
        weight: [N], equal on all ranks. Updated in place; at the end it is the
            last anchor.
        curvature: [N], of this island's parabola.
        target: [N], of this island's parabola.
        rate: of the inner steps.
        rounds: how many.
        inner_steps: H, the steps of a round.
        outer_rate: of the outer SGD.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of N numbers a round.
    """
    anchor = weight.clone()
    for _ in range(rounds):
        for _ in range(inner_steps):
            inner_step(weight, curvature, target, rate)
        gradient = weight - anchor
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size(group)
        anchor -= outer_rate * gradient
        weight.set_(anchor)
