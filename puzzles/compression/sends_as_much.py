"""compression.sends_as_much: It trains, and sends as much as before.

rankwise check compression.sends_as_much
rankwise hint compression.sends_as_much

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.plain import dequantise, quantise


def gather_quantised(x: Tensor, block: int, group: ProcessGroup) -> Tensor:
    """It trains, and sends as much as before.

    Parameters are to be gathered in 8 bits. Someone has switched it on, and
    this is what is seen:

        a   the loss is a little off, as it should be with 8 bits
        b   all ranks compute with the same numbers
        c   what arrives has 255 values to a block at most
        d   on a slow link a step takes exactly as long as before

    So a test of the loss passes, and so does one of the values. Count bytes,
    and mend it: the same numbers, and little more than a quarter of what is
    sent now.

    Given are `quantise(x, block, largest)`, which returns integers in int8 and
    a scale for each block, and `dequantise(codes, scales)`, which returns
    numbers in float32.

    Args:
        x: [m] in float32, where `block` divides m, on each of n ranks. It stays
            as it is.
        block: numbers that share a scale.
        group: n ranks. Any n.

    Returns: [n·m] in float32: what has arrived of all ranks' `x`, in order, the
    same on each of them.

    Budget: a byte for each number, and 4 for each scale, to each of the other
    ranks.
    """
    n = dist.get_world_size(group)
    out = x.new_empty(n * len(x))
    rounded = dequantise(*quantise(x, block, 127))
    dist.all_gather(list(out.chunk(n)), rounded, group=group)
    return out
