"""compression.stochastic_rounding: Round by chance, and be right on average.

rankwise check compression.stochastic_rounding
rankwise hint compression.stochastic_rounding

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def round_by_chance(x: Tensor, seed: int) -> Tensor:
    """Round by chance, and be right on average.

    To the nearest integer 0.25 is always 0: a gradient of a quarter of a step
    moves nothing, however often it comes. Round it up once in four times, and
    the mean is right.

    Args:
        x: any finite numbers in float32, up to two million. It stays as it is.
        seed: what chance follows from: the same `x` and seed give the same
            result, another seed another one.
            `torch.Generator().manual_seed(seed)` is a source of chance of one's
            own.

    Returns: a tensor of the same shape and dtype, in which each number is one
    of the two integers beside it, or itself where it is one; the upper one as
    often as x lies near it, each number by itself.

    What is checked is the distribution: some thousand of each number.

    Budget: memory for twelve tensors like `x`.
    """
    raise NotImplementedError("not solved yet")
