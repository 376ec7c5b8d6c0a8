"""compression.eight_bit_state: Adam's moments in 8 bits.

rankwise check compression.eight_bit_state
rankwise hint compression.eight_bit_state

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def adam_8_bit(
    parameters: Tensor,
    gradient: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    rate: float,
    step: int,
) -> None:
    """Adam's moments in 8 bits.

    Adam keeps two moments of each parameter, 8 bytes in float32, which are more
    than anything else. In 8 bits they are 2 bytes. They are kept as whole
    numbers from -127 to 127, codes, and each block of them has a scale of its
    own, so that a large number spoils no other block. Of the second moment v
    the root is kept: v of small gradients is the square of something small, and
    would become zero, by which the update is divided.

    Take a step of Adam: of each block make m and v again, update them, and
    update the parameters *by these*, before they are rounded. Then keep them as
    codes: the scale is the largest absolute value of the block divided by 127,
    the code the nearest whole number to value / scale. A block of zeros has
    scale 0 and codes 0.

        m = 0.9 m + 0.1 g          v = 0.99 v + 0.01 g²
        parameters -= rate · m / (1 - 0.9^step)
                      / (sqrt(v / (1 - 0.99^step)) + 1e-8)

    Args:
        parameters: flat, in float64. Update them in place.
        gradient: as many.
        first: (codes, scales) of m: int8, as many as parameters, and a float64
            for each block of neighbours; all blocks are equally long. Update
            both in place.
        second: (codes, scales) of the root of v. Update both in place.
        rate: of learning.
        step: counted from 1.

    Returns: None.

    Budget: room for some blocks in full, and never for the moments of all
    parameters: else nothing is saved.
    """
    raise NotImplementedError("not solved yet")
