"""ranks.ring_shift: Pass it on around a ring.

rankwise check ranks.ring_shift
rankwise hint ranks.ring_shift

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def ring_shift(x: Tensor, group: ProcessGroup) -> Tensor:
    """Pass it on around a ring.

    The ranks of `group` stand in a ring: the right neighbour of rank r is rank
    r + 1, and that of the last rank is rank 0. Send `x` to the right, and
    return what came from the left.

    Args:
        x: a contiguous tensor, of the same shape and dtype on every rank. Leave
            it as it is.
        group: n ranks. With n = 1 you are your own neighbour, and there is no
            other rank to talk to.

    Returns: a new tensor like `x`.

    Budget: one step. All messages must be in flight at the same time.
    """
    raise NotImplementedError("not solved yet")
