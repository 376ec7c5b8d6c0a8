"""resilience.nan_on_one_rank: NaN on one rank.

rankwise check resilience.nan_on_one_rank
rankwise hint resilience.nan_on_one_rank

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def train(
    weight: Tensor,
    gradients: Sequence[Tensor],
    rate: float,
    group: ProcessGroup,
) -> list[int]:
    """NaN on one rank.

    A training loop leaves out steps whose gradient is infinite or NaN. On one
    rank it has worked for years. On four ranks it stops in the middle of the
    night: three ranks wait in an all-reduce, and the fourth waits in the one of
    the next step. (It has happened: fairscale#754.) Where it does not stop,
    replicas are no longer equal.

    Mend it. A step is left out on all ranks if the gradient of any of them has
    an element that is not finite; else it is taken on all. A NaN must not be
    sent: it would make NaN of whatever it is added to, and no rank could say
    where it began. So the ranks are watched here, and a message that holds one
    is an error.

    Args:
        weight: [N], the same on every rank; updated in place with the mean of
            all ranks' gradients.
        gradients: [N] of this rank, one for each step. They may be overwritten.
        rate: of learning.
        group: n ranks. Any n.

    Returns: the steps that were left out, the same on every rank.

    Budget: one message of N + 1 numbers for each step, and not one more.
    """
    n, skipped = dist.get_world_size(group), []
    for step, gradient in enumerate(gradients):
        if not gradient.isfinite().all():
            skipped.append(step)
            continue
        dist.all_reduce(gradient, group=group)
        weight -= rate * gradient / n
    return skipped
