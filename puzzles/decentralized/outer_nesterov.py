"""decentralized.outer_nesterov: The outer step, with Nesterov momentum.

rankwise check decentralized.outer_nesterov
rankwise hint decentralized.outer_nesterov

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def outer_nesterov(
    anchor: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    rate: float,
    momentum: float,
    group: ProcessGroup,
) -> None:
    """The outer step, with Nesterov momentum.

    Each island has the pseudo-gradient of its round, and all have the same
    anchor and the same velocity. Let all take the outer step with the mean of
    the gradients g, as `torch.optim.SGD` does with `nesterov=True`:

        velocity = momentum * velocity + g
        anchor   = anchor - rate * (g + momentum * velocity)

    No rank has to be asked for the result: what all know, all can compute. One
    engine lets rank 0 take the step and broadcast the parameters, a second
    message as long as the first.

    Args:
        anchor: [N], equal on all ranks. Updated in place.
        velocity: [N], equal on all ranks. Updated in place.
        gradient: [N], of this island. It stays as it is.
        rate: of the outer optimizer.
        momentum: of the outer optimizer.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of N numbers.
    """
    raise NotImplementedError("not solved yet")
