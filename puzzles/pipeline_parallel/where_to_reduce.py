"""pipeline_parallel.where_to_reduce: Where to sum over replicas.

rankwise check pipeline_parallel.where_to_reduce
rankwise hint pipeline_parallel.where_to_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.pipeline_parallel.schedule import Action, Kind


def run_and_reduce(
    line: Sequence[Action],
    compute: Callable[[Action], None],
    gradients: Mapping[int, Tensor],
    group: ProcessGroup,
) -> None:
    """Where to sum over replicas.

    Two pipelines, or n of them, train replicas of one model: each has a part of
    the batch, which it cuts into micro-batches. This rank has one or two
    stages, whose gradients grow from micro-batch to micro-batch. Replicas must
    agree on the sum before the optimizer steps. So somewhere in the step there
    must be an all-reduce for each stage. Where?

    Go through this rank's actions, and compute each of them: `compute(action)`.
    A backward adds what it has found to `gradients[action.stage]`; where
    backward is split, that is W (`Kind.WEIGHT`), while I (`Kind.INPUT`) has to
    do with activations alone. Orders are of several kinds. Do not rely on what
    a micro-batch is called.

    With `async_op=True`, `dist.all_reduce` returns at once, and gives you a
    request to wait for: a gradient can travel while this rank computes for its
    other stage. The loss of each micro-batch is divided by the number of tokens
    of all micro-batches of all replicas already: gradients are summed, never
    averaged.

    Args:
        line: this rank's actions, in order.
            `kind, stage, micro_batch = action`.
        compute: `compute(action)` takes its time.
        gradients: of each stage of this rank, by its number; zeros to begin
            with. In the end, in place, the sum over all micro-batches of all
            replicas.
        group: the n replicas of this rank, which all have the same line. Any n.

    Budget: the gradient of each stage is sent once. On a modelled link the time
    of computing and of one message.
    """
    raise NotImplementedError("not solved yet")
