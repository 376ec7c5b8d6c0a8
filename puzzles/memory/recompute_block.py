"""memory.recompute_block: Recompute a block.

rankwise check memory.recompute_block
rankwise hint memory.recompute_block

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Tensors = Tensor | tuple[Tensor, ...]


def recomputed(function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
    """Recompute a block.

    `function(*inputs)` would keep everything that its backward needs, from now
    until then. You keep the inputs alone. When backward comes, call the
    function again, with autograd watching this time, and go back through that.

    Write a `torch.autograd.Function`, inside this function or outside, and
    return what its `apply` returns. Its `forward(ctx, ...)` runs without a
    graph being made; `ctx.save_for_backward(...)` keeps tensors. Its
    `backward(ctx, gradient)` returns one gradient for each argument of
    `forward` after ctx, None for those that have none. Inside it,
    `with torch.enable_grad():` records again.

    The function is a block of a model. It has parameters inside, which need
    their gradients, and of which `apply` knows nothing. The first block gets
    its inputs from the data: they need no gradient, and if no argument of
    `apply` needs one, autograd never calls your `backward`.

    Args:
        function: from tensors to one tensor. It draws no random numbers.
        inputs: what it is given. Each may have a history, be a leaf, or need no
            gradient.

    Returns: function(*inputs), and with it a backward that gives inputs and
    parameters their gradients.

    Budget: between forward and backward, nothing but the output is there, and
    at most one number beside it. The function runs twice, not more.
    """
    raise NotImplementedError("not solved yet")
