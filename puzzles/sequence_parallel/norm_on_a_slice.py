"""sequence_parallel.norm_on_a_slice: A norm on a slice of the tokens.

rankwise check sequence_parallel.norm_on_a_slice
rankwise hint sequence_parallel.norm_on_a_slice

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, group: ProcessGroup
) -> Tensor:
    """A norm on a slice of the tokens.

    LayerNorm takes off each token's mean over its features, and divides by
    their deviation:

        y = weight · (x - mean) / sqrt(variance + epsilon) + bias

    It looks at one token at a time. With sequence parallelism every rank has
    some of the tokens, and the norm needs no message. But weight and bias are
    the same on every rank, and must stay so: all ranks have to take the same
    step, the one that a single process with all tokens would take. So what must
    `weight.grad` be on every rank?

    `torch.nn.functional.layer_norm(x, [D], weight, bias, epsilon)` is the norm.
    A `torch.autograd.Function` may do nothing on the way there and something on
    the way back.

    Args:
        x: [B, S/n, D], this rank's tokens.
        weight: [D], the same on every rank.
        bias: [D], the same on every rank.
        epsilon: added to the variance.
        group: n ranks. Any n.

    Returns: y, like `x`. After its backward, `x.grad` is that of this rank's
    tokens, and `weight.grad` and `bias.grad` are those of all tokens, on every
    rank.

    Budget: one all-reduce of 2 D numbers.
    """
    raise NotImplementedError("not solved yet")
