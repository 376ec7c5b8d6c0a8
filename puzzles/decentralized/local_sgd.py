"""decentralized.local_sgd: Train alone, meet now and then.

rankwise check decentralized.local_sgd
rankwise hint decentralized.local_sgd

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


def local_sgd(
    weight: Tensor,
    curvature: Tensor,
    target: Tensor,
    rate: float,
    rounds: int,
    inner_steps: int,
    group: ProcessGroup,
) -> None:
    """Train alone, meet now and then.

    The islands of a run are an ocean apart, and to send gradients in every step
    would take longer than to compute them. So each trains by itself for some
    steps, and then all take the mean of their parameters; that is a round. Here
    an island is one rank, and what it trains on is a parabola of its own.

    `inner_step(weight, curvature, target, rate)` is given: an island's own
    step, in place.

    Args:
        weight: [N], equal on all ranks. Updated in place.
        curvature: [N], of this island's parabola.
        target: [N], of this island's parabola.
        rate: of learning.
        rounds: how many; each ends with a mean.
        inner_steps: H, the steps of a round.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of N numbers a round.
    """
    raise NotImplementedError("not solved yet")
