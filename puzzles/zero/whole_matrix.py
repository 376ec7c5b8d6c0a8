"""zero.whole_matrix: The whole matrix to its owner (Muon).

rankwise check zero.whole_matrix
rankwise hint zero.whole_matrix

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.zero.plain_matrices import newton_schulz


def orthogonal_by_owners(
    shards: list[Tensor],
    shapes: list[tuple[int, int]],
    owners: list[int],
    group: ProcessGroup,
) -> None:
    """The whole matrix to its owner (Muon).

    Muon replaces the update of a matrix U S Vᵀ by nearly U Vᵀ: all singular
    values become about 1. No rank can do that with the n-th of a matrix that
    ZeRO or FSDP gives it, since every element of the result depends on every
    element of the matrix. And if all of them gathered all matrices, each would
    do the work of all, and send n times as much. So each matrix has an owner:
    there it is whole for a moment, and nowhere else.

    Given is `newton_schulz(matrix)`: from a whole matrix (rows, columns) to a
    nearly orthogonal one of its shape.

    Args:
        shards: a list; of each matrix, this rank's n-th of the flat matrix,
            which is cut through the middle of rows. n divides the number of its
            elements. Put the same n-th of the result in its place.
        shapes: (rows, columns) of each matrix.
        owners: of each matrix, a rank of the group: the same list on every
            rank.
        group: n ranks. Any n.

    Returns: None. What changes are the shards.

    Budget: of a matrix that another rank owns, a rank sends its own n-th; of
    one that it owns, the n - 1 others of the result. All matrices travel
    together, there and back: 2(n-1) steps, however many there are.
    """
    raise NotImplementedError("not solved yet")
