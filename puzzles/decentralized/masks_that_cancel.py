"""decentralized.masks_that_cancel: Masks that cancel.

rankwise check decentralized.masks_that_cancel
rankwise hint decentralized.masks_that_cancel

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from reference.decentralized.answers.mask import mask_of


def masked(
    x: Tensor, seeds: Sequence[int], rank: int, gone: int
) -> tuple[Tensor, Tensor]:
    """Masks that cancel.

    A server is to know the sum of what n clients say, and nothing that any of
    them has said. Each two clients share a seed, from which both draw the same
    mask of random numbers. In each pair the client of the lower rank adds the
    mask to its numbers, the other one subtracts it. In the sum of all, masks
    cancel, and exactly: numbers are integers, and all arithmetic is modulo
    2^32. A single message looks like noise.

    Then the message of one client does not arrive. Its masks in the others'
    messages have no partner. So each of the others says in a second message
    what its mask with that client is, with the sign with which it has used it;
    the server subtracts these from the sum.

    Given is `mask_of(seed, length)`: [length] of int64, each from 0 to 2^32 -
    1.

    Args:
        x: [N] of int64, from 0 to 2^32 - 1.
        seeds: n numbers, the one at j shared with client j; its own place means
            nothing.
        rank: of this client, from 0 to n - 1.
        gone: rank of another client; where n is 1 there is none, and it is this
            one's own.

    Returns: two new tensors [N] of int64, each number from 0 to 2^32 - 1: x
    with all masks, and what this client says in its second message; zeros where
    n is 1.

    Budget: each mask is drawn once.
    """
    raise NotImplementedError("not solved yet")
