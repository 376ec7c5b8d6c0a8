"""decentralized.diloco_whole: DiLoCo whole.

rankwise check decentralized.diloco_whole
rankwise hint decentralized.diloco_whole

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
    """DiLoCo whole.

    Put it together (Douillard et al. 2023, algorithm 1). Islands begin at the
    same anchor. In each round an island takes H inner steps; the mean of anchor
    - weight over islands is the gradient of an outer step, which moves the
    anchor by SGD with Nesterov momentum; and from the new anchor all islands
    begin the next round.

    `inner_step(weight, curvature, target, rate)` is given: an island's own
    step, in place.

    Args:
        weight: [N], equal on all ranks. Updated in place; at the end it is the
            last anchor.
        curvature: [N], of this island's parabola.
        target: [N], of this island's parabola.
        rate: of the inner steps.
        rounds: how many.
        inner_steps: H, the steps of a round.
        outer_rate: of the outer optimizer.
        momentum: of the outer optimizer; its velocity begins at 0.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of N numbers a round.
    """
    raise NotImplementedError("not solved yet")
