"""tensor_parallel.column_linear: A linear layer, split by columns.

rankwise check tensor_parallel.column_linear
rankwise hint tensor_parallel.column_linear

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    upstream: Tensor,
    join: bool,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear layer, split by columns.

    A linear layer is y = x Aᵀ + b, where row f of A (torch's `weight`) makes
    feature f of y, and no other. So ranks can share the features: rank r has
    the r-th n-th of the rows of A and of b, and sees all tokens. Compute this
    layer, forward and backward, without autograd. In the paper A is transposed,
    and its rows are columns: hence the name.

    With u for the gradient of y, a layer in one process has

        gradient of x = u A
        gradient of A = uᵀ x
        gradient of b = the sum of u's rows

    Which of these does a rank know by itself, and which only together with the
    others?

    What comes next may want each rank's features where they are, or (with
    `join`) every rank's on every rank. In that case all ranks then do the same,
    so `upstream` is whole, and the same on all of them.

    The all-gather is called `all_gather_single(out, x, group=group)`, before
    torch 2.13 `all_gather_into_tensor`: it puts every rank's x below each
    other. `all_gather` of a list of tensors will do, too.

    Args:
        x: [T, D], T tokens, the same on every rank.
        weight: [F / n, D], this rank's rows.
        bias: [F / n], this rank's.
        upstream: gradient of the y that is returned, of its shape.
        join: whether every rank gets all ranks' features.
        group: n ranks. Any n.

    Returns: four tensors: y, [T, F / n], or [T, F] with `join`; the gradients
    of x (of the whole layer, the same on every rank), of this rank's weight,
    and of this rank's bias.

    Budget: one all-reduce of a tensor like x; with `join` one all-gather of y,
    too.
    """
    raise NotImplementedError("not solved yet")
