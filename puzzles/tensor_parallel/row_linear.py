"""tensor_parallel.row_linear: A linear layer, split by rows.

rankwise check tensor_parallel.row_linear
rankwise hint tensor_parallel.row_linear

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def row_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    upstream: Tensor,
    split: bool,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A linear layer, split by rows.

    After a layer that is split by columns, each rank has some of the features.
    The next layer can start from there: y = x Bᵀ + b is a sum over input
    features, and rank r has those summands that belong to its own. So it has
    these columns of B (torch's `weight`; in the paper B is transposed, and they
    are rows). Compute this layer, forward and backward, without autograd. y has
    all its features on every rank, and so has its gradient.

    With u for the gradient of y, a layer in one process has

        gradient of x = u B
        gradient of B = uᵀ x
        gradient of b = the sum of u's rows

    The bias is whole on every rank. How often is it in y?

    With `split`, x is whole on every rank, and each takes its own features out
    of it. All ranks have done the same to make this x, so all need the whole
    gradient of it.

    The all-gather is called `all_gather_single(out, x, group=group)`, before
    torch 2.13 `all_gather_into_tensor`: it puts every rank's x below each
    other. `all_gather` of a list of tensors will do, too.

    Args:
        x: [T, F / n], T tokens, this rank's features; with `split` [T, F], the
            same on every rank.
        weight: [D, F / n], this rank's columns.
        bias: [D], the same on every rank.
        upstream: [T, D], gradient of y, the same on every rank.
        split: whether this rank's features are to be taken out of x.
        group: n ranks. Any n.

    Returns: four tensors: y, [T, D], the same on every rank; the gradients of x
    (of its shape), of this rank's weight, and of the bias (all of it, the same
    on every rank).

    Budget: one all-reduce of a tensor like y; with `split` one all-gather of a
    tensor like x, too.
    """
    raise NotImplementedError("not solved yet")
