"""compression.straight_through: Round, and let the gradient through.

rankwise check compression.straight_through
rankwise hint compression.straight_through

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def straight_through(x: Tensor, scale: float, largest: int) -> Tensor:
    """Round, and let the gradient through.

    A model that will be used with 4-bit weights can be trained for it:
    quantisation-aware training keeps exact weights, computes with rounded ones,
    and updates the exact ones by the gradient of the loss. But rounding is a
    staircase. Its derivative is zero on every step, and nothing would ever be
    learned. So in backward take rounding for what it is from afar, a straight
    line: the gradient goes through as it is. Where x is beyond the last step,
    from afar the line is flat, and there is no gradient: a weight there stays,
    until something else moves it.

    Args:
        x: a float64 tensor of any shape, which wants a gradient.
        scale: a float, between one multiple and the next.
        largest: an int; multiples go from -largest to largest.

    Returns: for each x the nearest multiple of `scale`, -largest or largest
    times it at the ends. In backward, x gets the gradient of the result where
    |x| ≤ largest · scale, and zero elsewhere.

    Budget: memory for a few tensors of this shape.
    """
    raise NotImplementedError("not solved yet")
