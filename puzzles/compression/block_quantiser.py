"""compression.block_quantiser: Blocks of integers with a scale.

rankwise check compression.block_quantiser
rankwise hint compression.block_quantiser

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def quantise(x: Tensor, block: int, largest: int) -> tuple[Tensor, Tensor]:
    """Blocks of integers with a scale.

    Send numbers as small integers. A block of them shares a scale s = max|x| /
    largest, and each number becomes the integer nearest to x / s (of two that
    are as near, the even one); what arrives is the integer times s. With one
    scale for all, a single large number would make zeros of the others; so each
    block has its own.

    Three kinds of blocks need care. All zeros have no largest number to divide
    by. Where max|x| is tiny, s is so small that 1 / s is infinite: let s be at
    least `torch.finfo(torch.float32).tiny`, also for zeros. And where a block
    holds NaN or infinity, what arrives must not look like numbers: s is NaN
    then, and all its integers are 0.

    Args:
        x: [N] in float32, where `block` divides N. It stays as it is.
        block: numbers that share a scale.
        largest: 127 or less.

    Returns: integers, [N] in int8, and scales, [N / block] in float32.

    Budget: memory for three tensors like `x`.
    """
    raise NotImplementedError("not solved yet")
