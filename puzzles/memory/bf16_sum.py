"""memory.bf16_sum: Mend a sum that stalls.

rankwise check memory.bf16_sum
rankwise hint memory.bf16_sum

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def total(parts: Sequence[Tensor]) -> Tensor:
    """Mend a sum that stalls.

    The gradients of many micro-batches, in 16 bits, are added up in 16 bits. It
    works for a few of them. With hundreds, what comes later is lost: see
    `memory.bf16_stall`. Mend it, so that the sum is right to two units in the
    last place.

    Args:
        parts: at least one tensor, all of the same shape and dtype,
            torch.bfloat16 or torch.float16.

    Returns: a new tensor of that shape and dtype. The parts stay as they are.

    Budget: memory for a few tensors of this shape, however many parts there
    are.
    """
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total
