"""pipeline_parallel.two_stages: One model, two ranks.

rankwise check pipeline_parallel.two_stages
rankwise hint pipeline_parallel.two_stages

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def two_stages(
    x: Tensor | None, target: Tensor | None, weight: Tensor, group: ProcessGroup
) -> float | None:
    """One model, two ranks.

    A model does not fit on one rank, so rank 0 has its first layer and rank 1
    its second:

        h = tanh(x W0ᵀ)             rank 0
        y = h W1ᵀ, and the loss     rank 1

    Autograd knows the layers of its own process only. A tensor that has come by
    a message has no past, and one that has been sent has no future. So you
    carry over what the chain rule needs: h forward, and what backward?

    Args:
        x: [B, D] on rank 0; None on rank 1.
        target: [B, F] on rank 1; None on rank 0.
        weight: this rank's, a leaf that requires a gradient: [H, D] on rank 0,
            [F, H] on rank 1.
        group: 2 ranks.

    Returns: on rank 1 the loss, the mean over all elements of (y - target)², as
    a float. None on rank 0, which has no loss. Afterwards `weight.grad` of each
    rank is the gradient of the loss; arguments stay as they are.

    Budget: one tensor [B, H] of float64 from each rank, in 2 steps.
    """
    raise NotImplementedError("not solved yet")
