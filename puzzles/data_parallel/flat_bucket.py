"""data_parallel.flat_bucket: All gradients in one message.

rankwise check data_parallel.flat_bucket
rankwise hint data_parallel.flat_bucket

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.data_parallel.replicated import native

AllReduce = Callable[[Tensor, ProcessGroup], None]


def flat(
    gradients: Sequence[Tensor],
    group: ProcessGroup,
    all_reduce: AllReduce = native,
) -> None:
    """All gradients in one message.

    A message costs a latency, however small it is; a model of a thousand
    parameters, most of them tiny, pays it a thousand times. Put all gradients
    one after another into one flat tensor, sum that, and put the sums back.

    Given is `all_reduce(x, group)`, which makes `x` on every rank the sum of
    every rank's `x`, in place.

    Args:
        gradients: of the parameters, one after the other; of the same shapes in
            the same order on every rank. Some may be empty.
        group: n ranks. Any n.
        all_reduce: how to sum the flat tensor.

    Afterwards each of `gradients` holds the sum over all ranks, in place.

    Budget: one all-reduce, and memory for one copy of all gradients.
    """
    raise NotImplementedError("not solved yet")
