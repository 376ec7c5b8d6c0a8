"""decentralized.overlap_with_a_delay: Overlap, with a delay.

rankwise check decentralized.overlap_with_a_delay
rankwise hint decentralized.overlap_with_a_delay

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


def overlap_with_a_delay(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    steps: int,
    inner_steps: int,
    delay: int,
    outer_rate: float,
    group: ProcessGroup,
) -> None:
    """Overlap, with a delay.

    Even a message every H steps makes all wait while it travels. So let it
    travel while islands train on: after each H-th step an island starts to send
    anchor - weight, as it is then; it takes `delay` more inner steps; then it
    waits for the sum, takes a step of SGD from the anchor with the mean, and
    continues from the new anchor. What it has learned meanwhile is given up
    here. (Streaming DiLoCo keeps a part of it.)

    `inner_step(weight, curvature, target, rate)` is given: an island's own
    step, in place.

    Args:
        weight: [N], equal on all ranks. Updated in place.
        curvature: [N], of this island's parabola.
        target: [N], of this island's parabola.
        rate: of the inner steps.
        steps: to take. What is under way at the end is waited for, and not
            used.
        inner_steps: H, from one sending to the next.
        delay: inner steps between sending and using: 0 or more, less than H.
        outer_rate: of the outer SGD.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce each H steps, by `async_op=True`.
    """
    raise NotImplementedError("not solved yet")
