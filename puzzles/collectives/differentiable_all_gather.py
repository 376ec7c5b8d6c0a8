"""collectives.differentiable_all_gather:
An all-gather that gradients pass through.

rankwise check collectives.differentiable_all_gather
rankwise hint collectives.differentiable_all_gather

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.all_gather import ring as gather
from reference.collectives.reduce_scatter import ring as scatter_sum


def all_gather(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """An all-gather that gradients pass through.

    Gather every rank's `x` side by side along `dim`, so that autograd can go
    back through it.

    Every rank then computes something else with what it has gathered. So my `x`
    acts on every rank's loss, and its gradient is the sum of the gradients that
    all ranks find for my part. That is a collective again; which?

    Given are `gather(x, out, group)` and `scatter_sum(x, out, group)`: the
    all-gather and the reduce-scatter around a ring. Both see memory, where
    parts lie one after another: dim 0 of a contiguous tensor. For another dim,
    `x.movedim(dim, 0).contiguous()` before, and `out.movedim(0, dim)` after.

    Write a `torch.autograd.Function` with `forward(ctx, ...)` and
    `backward(ctx, gradient)`, inside this function or outside, and return what
    its `apply` returns. `backward` returns one gradient for each argument of
    `forward` after ctx, None for those that have none.

    Args:
        x: of the same shape and dtype on every rank.
        group: n ranks. Any n.
        dim: along which the parts are joined.

    Returns: a new tensor, n times as long as `x` along `dim`, the same on every
    rank.

    Budget: n-1 steps there and n-1 back, and n-1 parts sent each way.
    """
    raise NotImplementedError("not solved yet")
