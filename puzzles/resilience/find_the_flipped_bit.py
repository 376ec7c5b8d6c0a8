"""resilience.find_the_flipped_bit: Find the flipped bit.

rankwise check resilience.find_the_flipped_bit
rankwise hint resilience.find_the_flipped_bit

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def find_flip(x: Tensor, group: ProcessGroup) -> tuple[int, int, int] | None:
    """Find the flipped bit.

    n replicas hold the same numbers, and in one of them a bit has flipped: in
    the memory of a card, in a cache, by a core that computes wrongly now and
    then. The loss shows nothing. A checksum for each replica would tell which
    one it is. A second checksum tells more: the place and the bit, so that one
    can write to the owner of the card.

    `x.view(torch.int32)` has the bits of x as integers. Think of sums of these,
    in int64.

    Args:
        x: [N] in float32. On one rank at most, one bit of it is not as on the
            others.
        group: n ranks, 3 or more.

    Returns: the same on every rank: None if all are equal; else (rank, place,
    bit): the group rank, the index in x, and the number of the bit, from 0, the
    last one of the mantissa, to 31, the sign.

    Budget: 16 bytes to each of the others, in one message.
    """
    raise NotImplementedError("not solved yet")
