"""decentralized.off_by_one: H steps, or H + 1.

rankwise check decentralized.off_by_one
rankwise hint decentralized.off_by_one

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


def meet_after_h_steps(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    steps: int,
    inner_steps: int,
    group: ProcessGroup,
) -> list[int]:
    """H steps, or H + 1.

    A strategy of a public gym for islands: it counts steps, and asks whether
    islands are to meet. Its first round has one step more than all the others,
    and every meeting of a run comes a step late; the loss looks as it should.
    Mend it: islands meet after H steps, 2H, 3H and so on, and never else.

    `inner_step(weight, curvature, target, rate)` is given: an island's own
    step, in place.

    Args:
        weight: [N], equal on all ranks. Updated in place.
        curvature: [N], of this island's parabola.
        target: [N], of this island's parabola.
        rate: of learning.
        steps: to take. H need not divide them: then the last steps are followed
            by no meeting.
        inner_steps: H, 1 or more.
        group: n ranks, an island each. Any n.

    Returns: after how many steps islands have met, a list.

    Budget: one all-reduce of N numbers for each meeting.
    """
    met = []
    for taken in range(steps):
        inner_step(weight, curvature, target, rate)
        if taken > 0 and taken % inner_steps == 0:
            dist.all_reduce(weight, group=group)
            weight /= dist.get_world_size(group)
            met.append(taken)
    return met
