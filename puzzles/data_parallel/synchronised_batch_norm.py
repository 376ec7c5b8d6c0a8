"""data_parallel.synchronised_batch_norm: Batch norm over all ranks.

rankwise check data_parallel.synchronised_batch_norm
rankwise hint data_parallel.synchronised_batch_norm

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    group: ProcessGroup,
    epsilon: float = 1e-5,
) -> Tensor:
    """Batch norm over all ranks.

    Batch norm looks at the whole batch: per channel it takes off the mean and
    divides by the deviation. With n ranks, each has only its part of the batch,
    and the mean of that is another one. Normalise by mean and variance of what
    *all* ranks have, and let gradients find their way back.

        y = weight · x' + bias
        x' = (x - mean) / deviation
        deviation = sqrt(variance + epsilon)

    Mean and variance (divided by N, all ranks' samples) follow from sum, sum of
    squares and count. On the way back, every x acts on the mean and deviation
    of all ranks. With g, the gradient of y:

        gradient of x = weight / deviation · (g - mean of g - x' · mean of g x')

    where both means are over all ranks' samples again.

    Write a `torch.autograd.Function` with `forward(ctx, ...)` and
    `backward(ctx, gradient)`, and return what its `apply` returns. `backward`
    returns one gradient for each argument of `forward` after ctx. Weight and
    bias get what this rank's samples contribute: gradients of parameters are
    summed over ranks later.

    Args:
        x: [B, C]. B differs from rank to rank, and may be 0; not on all ranks.
        weight: [C], the same on every rank.
        bias: [C], the same on every rank.
        group: n ranks. Any n.
        epsilon: added to the variance.

    Returns: y, like `x`.

    Budget: one all-reduce in forward and one in backward, of 2 C + 1 numbers at
    most.
    """
    raise NotImplementedError("not solved yet")
