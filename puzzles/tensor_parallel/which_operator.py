"""tensor_parallel.which_operator:
Which operator on the way there, and which on the way back.

rankwise check tensor_parallel.which_operator
rankwise hint tensor_parallel.which_operator

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


def operators(
    group: ProcessGroup
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Which operator on the way there, and which on the way back.

    A layer that is split by columns, then one that is split by rows: y = x Aᵀ
    Bᵀ, where rank r has some rows of A and the columns of B that belong to
    them. What ranks need of each other happens at the two ends, and Megatron
    calls it f and g:

        x ── f ── x Aᵀ, this rank's features ── · Bᵀ, a part of y ── g ── y

    Outside, every rank has the same x and the same y, and computes the same
    loss from it, so the gradient of y is the same on every rank, too. Inside,
    each does work of its own. f and g must see to it that this holds on the way
    there and on the way back. What does each of them do in forward, and what in
    backward? Four answers, and "nothing" is among them.

    Write them so that autograd goes through: a `torch.autograd.Function` each,
    with `forward(ctx, x)` and `backward(ctx, gradient)`, whose `apply` is the
    operator. Both leave the tensor that they are given as it is, in backward,
    too.

    Args:
        group: n ranks. Any n.

    Returns: two functions, f and g. Each takes a tensor and gives one of the
    same shape.

    Budget: two all-reduces, one on the way there and one on the way back.
    """
    raise NotImplementedError("not solved yet")
