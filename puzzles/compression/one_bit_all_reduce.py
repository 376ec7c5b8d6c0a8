"""compression.one_bit_all_reduce: An all-reduce in 1 bit, in two stages.

rankwise check compression.one_bit_all_reduce
rankwise hint compression.one_bit_all_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.answers.sign_bits import decode, encode


def one_bit_all_reduce(
    x: Tensor, residual: Tensor, of_server: Tensor, group: ProcessGroup
) -> Tensor:
    """An all-reduce in 1 bit, in two stages.

    Send of each element its sign, and of each chunk one scale: the mean of its
    magnitudes. Rank j is the server of chunk j: it adds up what all have sent
    it (what the bits mean, not the bits), and sends all the sum, in signs and a
    scale again.

    Both times something is not sent. Each rank remembers that of its own `x`,
    and each server that of the sum of its chunk, and adds it the next time.

    Given are `encode(x)`, which makes bytes [..., L/8 + 4] of the signs and the
    scale of each row of `x` [..., L]; and `decode(bytes)`, which says what they
    mean, float64 [..., L].

    Args:
        x: [N] of this rank, float64; 8 n divides N.
        residual: [N] of this rank; updated in place.
        of_server: [N/n] of this rank as a server; updated in place.
        group: n ranks. Any n.

    Returns: [N], the same on every rank.

    Budget: two calls, N/8n + 4 bytes to each other rank in the one, and as many
    in the other.
    """
    raise NotImplementedError("not solved yet")
