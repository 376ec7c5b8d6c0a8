"""memory.recompute_dropout: Recompute a block with dropout.

rankwise check memory.recompute_dropout
rankwise hint memory.recompute_dropout

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
    """Recompute a block with dropout.

    As in `memory.recompute_block`, but now the function has dropout inside. Run
    it twice, and it drops other elements the second time: backward gives the
    gradient of something that was never computed. No error, no NaN; the model
    just learns worse.

    So the second run must draw the random numbers of the first. And after
    backward, all other code must continue with the random numbers that they
    would have got without any recomputation.

    `torch.get_rng_state()` says where the generator is,
    `torch.set_rng_state(state)` puts it there.

    Args:
        function: from tensors to one tensor. It draws random numbers, and has
            parameters inside.
        inputs: what it is given. Each may have a history, be a leaf, or need no
            gradient.

    Returns: function(*inputs), and with it a backward that gives inputs and
    parameters their gradients.

    Budget: between forward and backward, nothing but the output is there, no
    mask either, and at most one number beside it. (A state of the random
    numbers is not counted. It has 5 KB, however large the block.) The function
    runs twice, not more.
    """
    raise NotImplementedError("not solved yet")
