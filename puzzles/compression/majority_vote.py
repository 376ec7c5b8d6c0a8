"""compression.majority_vote: Majority vote.

rankwise check compression.majority_vote
rankwise hint compression.majority_vote

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.answers.sign_bits import pack, unpack


def majority_vote(gradient: Tensor, group: ProcessGroup) -> Tensor:
    """Majority vote.

    In signSGD a rank says of each element of its gradient only whether it is
    negative: one bit. The step goes where most ranks say. (A rank that has gone
    mad has one vote of n.)

    A ring cannot add up bits: the sum of three bits is no bit. So let each rank
    be the server of a chunk of N/n elements: it gets the votes for it from all,
    counts them, and sends all the outcome, which is one bit again.

    Given are `pack(x)`, which makes bytes [..., L/8] of `x` [..., L], a bit of
    1 for each element that is 0 or more; and `unpack(bytes)`, which makes 1 and
    -1 of them, float64 [..., L].

    Args:
        gradient: [N] of this rank, float64; 8 n divides N.
        group: n ranks. Any n.

    Returns: [N], float64, the same on every rank: 1 or -1 as most ranks have
    it; 1 where they are even.

    Budget: two calls, N/8n bytes to each other rank in the one, and as many in
    the other.
    """
    raise NotImplementedError("not solved yet")
