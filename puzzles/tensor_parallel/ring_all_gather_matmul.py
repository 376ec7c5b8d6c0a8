"""tensor_parallel.ring_all_gather_matmul:
An all-gather that hides behind its product.

rankwise check tensor_parallel.ring_all_gather_matmul
rankwise hint tensor_parallel.ring_all_gather_matmul

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Product = Callable[[Tensor, Tensor], Tensor]


def all_gather_matmul(
    x: Tensor, weight: Tensor, multiply: Product, group: ProcessGroup
) -> Tensor:
    """An all-gather that hides behind its product.

    Each rank has some rows of X, and needs all of them, times a weight of its
    own:

        y = all-gather(x) weightᵀ

    The usual way is to gather, then to multiply: while X travels no rank
    computes, while all compute nothing travels, and every rank holds all of X.
    But the rows of y that belong to one rank's rows of X depend on nothing
    else. And around a ring these come one rank's after another's.

    So multiply the rows that you hold, while you pass them on to the right and
    receive the next ones from the left. What has been multiplied and passed on
    can be forgotten.

    Args:
        x: [T / n, D], this rank's rows: rank r has the r-th n-th. Leave them as
            they are.
        weight: [F, D], another one on each rank.
        multiply: `multiply(a, b)` is a @ b. It takes its time: use it for all
            products.
        group: n ranks. Any n.

    Returns: y, [T, F].

    Budget: n-1 steps, (n-1)/n of X sent. Memory for y and its products, and for
    three ranks' rows of X at most (two are enough), never for the gathered X.
    On a modelled link the time of n-1 messages or products, whichever takes
    longer, and of one more product.
    """
    raise NotImplementedError("not solved yet")
