"""zero.own_a_slice: Own a slice of Adam (ZeRO-1).

rankwise check zero.own_a_slice
rankwise hint zero.own_a_slice

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.zero.plain import adam


def zero_1(
    parameters: Tensor,
    backward: Callable[[Tensor], Tensor],
    steps: int,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Own a slice of Adam (ZeRO-1).

    Train for some steps. In plain data parallelism every rank keeps Adam's two
    moments of all parameters, only to do the same arithmetic as every other
    rank. Share the work instead: rank r owns the r-th slice of the parameters,
    keeps the moments of that slice, and no other rank does.

    The gradient of a step is the sum over ranks: each has divided its loss by
    the number of tokens of all ranks, so sum, and never average. Which part of
    that sum does a rank need? And what must every rank have before the next
    step begins?

    Given is `adam(parameters, gradient, m, v, step)`: one step, in place on its
    first argument and on both moments. All four tensors have one shape; `step`
    counts from 1. Moments begin at zero.

    What you need of torch.distributed is called
    `reduce_scatter_single(out, x, group=group)` and
    `all_gather_single(out, x, group=group)`, before torch 2.13
    `reduce_scatter_tensor` and `all_gather_into_tensor`. In an all-gather `x`
    may be its own place in `out`.

    Args:
        parameters: flat, the same on every rank, and n divides their number.
            Update them in place.
        backward: `backward(parameters)` is the gradient of this rank's part of
            the loss, of the same shape.
        steps: how many.
        group: n ranks. Any n.

    Returns: (m, v) of this rank's slice, elements [rank * length / n, (rank +
    1) * length / n).

    Budget: 2(n-1)/n of the parameters sent in each step, as much as one
    all-reduce. Memory for one whole gradient and six slices: a name that still
    stands for the last step's gradient keeps a second one.
    """
    raise NotImplementedError("not solved yet")
