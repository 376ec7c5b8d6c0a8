"""memory.bf16_stall: Where a sum in few bits stalls.

rankwise check memory.bf16_stall
rankwise hint memory.bf16_stall

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch


def stalls_at(value: float, dtype: torch.dtype) -> float:
    """Where a sum in few bits stalls.

    s = 0, and then s += value, again and again, all of it in `dtype`. At first
    s grows. Then comes a number from which it never moves again: s + value lies
    between two floats, and the nearer one is s. Where does it stall?

    A dtype of p significant bits has 2^(p-1) floats from each power of two to
    the next, evenly spaced: `torch.finfo(dtype).eps` is the step from 1 to the
    next float, 2^(1-p). From 2 on the step is twice as large, from 4 on four
    times. Where s + value lies exactly in the middle between two floats, it is
    rounded to the one whose last bit is 0; a power of two ends in zeros.

    Args:
        value: what is added, positive; a number of `dtype`, in float16 at most
            16: beyond that the sum overflows before it stalls.
        dtype: of floats: torch.bfloat16, torch.float16, or a wider one.

    Returns: the last s, as a Python float.

    Budget: a formula. In float32 the loop would run for 16 million additions.
    """
    raise NotImplementedError("not solved yet")
