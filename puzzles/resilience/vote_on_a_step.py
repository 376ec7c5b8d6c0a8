"""resilience.vote_on_a_step: Vote on a step.

rankwise check resilience.vote_on_a_step
rankwise hint resilience.vote_on_a_step

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def vote_on_a_step(
    weight: Tensor,
    gradient: Tensor,
    good: bool,
    rate: float,
    least: int,
    group: ProcessGroup,
) -> int:
    """Vote on a step.

    Each rank is a replica. One of them ran out of memory in backward, another
    one read a damaged batch: they have no gradient, and they know it. They need
    not take the others along. Let the step be taken with the gradients that are
    there, by their mean, if there are at least `least` of them; also those that
    have none update, so that all replicas stay equal. Else no replica may
    change, not even those that are well.

    What stands in `gradient` on a replica that has failed is anything: it may
    be infinite or NaN.

    Args:
        weight: [N], equal on all ranks. Updated in place: weight -= rate * mean
            of the gradients that count.
        gradient: [N], of this replica. It stays as it is.
        good: whether this replica has computed it.
        rate: of learning.
        least: how many gradients make a step, 1 or more.
        group: n ranks. Any n.

    Returns: how many gradients were counted, the same on every rank; 0 where
    the step was not taken.

    Budget: one all-reduce of N + 1 numbers.
    """
    raise NotImplementedError("not solved yet")
