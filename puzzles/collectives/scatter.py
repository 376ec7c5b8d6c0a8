"""collectives.scatter: Scatter: one chunk for each.

rankwise check collectives.scatter
rankwise hint collectives.scatter

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def naive(
    out: Tensor, chunks: Tensor | None, root: int, group: ProcessGroup
) -> None:
    """Scatter: one chunk for each.

    The root has n chunks one after another. Afterwards rank i has the i-th of
    them, in `out`.

    Args:
        out: contiguous, of the same shape and dtype on every rank; the place
            for this rank's chunk.
        chunks: on the root, flat, n times as many elements as `out`: the chunks
            of rank 0, 1, 2, ... Leave it as it is. On all other ranks None.
        root: group rank of the one who has the chunks. It gets one, too.
        group: n ranks. Any n.

    Budget: n-1 steps. The root sends to each rank its own chunk and nothing
    else; the others send nothing. No memory besides what is there.
    """
    raise NotImplementedError("not solved yet")
