"""tensor_parallel.matmul_2d: A matrix product on a mesh (SUMMA).

rankwise check tensor_parallel.matmul_2d
rankwise hint tensor_parallel.matmul_2d

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def forward_and_backward(
    a: Tensor,
    b: Tensor,
    upstream: Tensor,
    row: ProcessGroup,
    column: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix product on a mesh (SUMMA).

    Splits along one dim leave something whole on every rank: all activations,
    or at least all their features. On a mesh of r x c ranks, every matrix can
    be cut both ways, and no rank holds more than a block of anything:

        C = A B        rank (i, j) has A_ij [M/r, K/c], B_ij [K/r, N/c], and
                       shall have C_ij [M/r, N/c]

    C_ij needs the i-th band of A and the j-th band of B, all of K; but not all
    at once. Cut K into lcm(r, c) panels. Of A's, the first lcm / c lie in the
    first column of the mesh, and so on; of B's, the first lcm / r lie in the
    first row. For each panel: the rank that has A's piece of it broadcasts that
    along its row, the one that has B's piece along its column, and every rank
    adds the product of both to its C_ij. On a square mesh, a panel is a block.

    Then the way back, from dC in the same blocks as C. Panel by panel again,
    and dC never travels:

        dA = dC Bᵀ      B's panel is broadcast; products are summed along the
                        row, to where dA's panel lies
        dB = Aᵀ dC      A's panel is broadcast; products are summed along the
                        column, to where dB's panel lies

    Args:
        a: [M/r, K/c], this rank's block of A.
        b: [K/r, N/c], this rank's block of B.
        upstream: [M/r, N/c], this rank's block of dC.
        row: the group of the c ranks of this rank's row, from left to right: j
            = dist.get_rank(row).
        column: the group of the r ranks of its column, from top to bottom: i =
            dist.get_rank(column).

    Returns: three tensors, this rank's blocks of C, dA and dB. lcm(r, c)
    divides K.

    Budget: of every panel of A and of B two broadcasts and one reduce. (Here
    one broadcast can serve forward and backward, but in a model time lies
    between, and no rank has kept the panels.) Memory for the three results, for
    three panels of A and of B, and for one more block of C.
    """
    raise NotImplementedError("not solved yet")
