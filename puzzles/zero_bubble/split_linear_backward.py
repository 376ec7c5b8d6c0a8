"""zero_bubble.split_linear_backward: Backward in two halves.

rankwise check zero_bubble.split_linear_backward
rankwise hint zero_bubble.split_linear_backward

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def split_linear(
    x: Tensor, weight: Tensor, later: Callable[[Callable[[], None]], None]
) -> Tensor:
    """Backward in two halves.

    Backward of a linear layer y = x Aᵀ is two products of the same size, with u
    the gradient of y:

        I    gradient of x = u A        the layer before waits for it
        W    gradient of A = uᵀ x       no rank waits for it, until the
                                        optimizer steps

    Autograd computes both, and the layer before waits for both. Write a linear
    layer that computes the first when backward comes, and puts the second off.
    Backward calls `later(finish)` with a function of no arguments. When there
    is time, the caller will call `finish()`, and that adds the gradient to
    `weight.grad`, which is None at first.

    Use a `torch.autograd.Function`, inside this function or outside, and return
    what its `apply` returns. Its `backward(ctx, gradient)` returns one gradient
    for each argument of `forward` after ctx, or None. Several micro-batches may
    be between forward and backward, or between I and W.

    Args:
        x: [T, D]. Where it comes from the data it needs no gradient: then none
            is computed.
        weight: [F, D], A, a leaf that requires a gradient.
        later: takes a function, to be called once, later.

    Returns: [T, F], x Aᵀ, with a backward in two halves.

    Budget: one product in forward, one in I (none if x needs no gradient), one
    in W. Between I and W nothing is held but x and u, and after W neither of
    them.
    """
    raise NotImplementedError("not solved yet")
