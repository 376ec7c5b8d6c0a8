"""compression.power_sgd: PowerSGD.

rankwise check compression.power_sgd
rankwise hint compression.power_sgd

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.plain_memory import orthogonalise


def power_sgd(
    gradient: Tensor, residual: Tensor, q: Tensor, group: ProcessGroup
) -> Tensor:
    """PowerSGD.

    Let M be the sum over ranks of gradient and residual, [A, B]. It is never
    sent. Instead, with Q [B, R] of the step before:

        P = M Q                 summed over ranks: each has a part of it
        P = orthogonalise(P)
        Q = Mᵀ P                summed likewise; the next step begins with it
        P Qᵀ                    is about M

    A rank's residual is what it did not bring to that: its own matrix, less P
    times what it brought to Q.

    Given is `orthogonalise(columns)`: makes the columns of a matrix [A, R]
    orthonormal, in place.

    Args:
        gradient: [A, B] of this rank, float64.
        residual: [A, B] of this rank; updated in place.
        q: [B, R], the same on every rank; updated in place.
        group: n ranks. Any n.

    Returns: P Qᵀ, [A, B], the same on every rank.

    Budget: two all-reduces, of R (A + B) numbers together.
    """
    raise NotImplementedError("not solved yet")
