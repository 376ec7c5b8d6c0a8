"""sequence_parallel.scatter_gather: From slices to all tokens, and back.

rankwise check sequence_parallel.scatter_gather
rankwise hint sequence_parallel.scatter_gather

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


def gather_and_scatter(
    group: ProcessGroup
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """From slices to all tokens, and back.

    A norm, a dropout, a residual look at each token by itself. So outside of
    attention and MLP each rank can do its share of the tokens: rank r has the
    r-th slice of the sequence. Inside, each rank works on all tokens, with its
    own heads or its own columns, and what the ranks make there must be added
    up.

        slices [B, S/n, D]  --gather-->  all tokens [B, S, D]
        all tokens [B, S, D]  --this rank's work-->  parts of a sum [B, S, D]
        parts of a sum [B, S, D]  --scatter-->  slices of the sum [B, S/n, D]

    Write both, so that gradients find their way back. Every rank does *other*
    work with all tokens, and so finds another gradient for them. What is the
    gradient of my slice then, and of the part that I gave to a sum?

    You may want a `torch.autograd.Function` for each, with `forward(ctx, x)`
    and `backward(ctx, gradient)`; their `apply` is what to return.

    What you need of torch.distributed is called
    `all_gather_single(out, x, group=group)` and
    `reduce_scatter_single(out, x, group=group)`, before torch 2.13
    `all_gather_into_tensor` and `reduce_scatter_tensor`. Both see memory: the
    longer tensor is contiguous and has n times as many rows, [n·B, S/n, D], and
    the r-th part of them belongs to rank r. Slices of a sequence lie in dim 1.

    Args:
        group: n ranks. Any n; it divides S.

    Returns: two functions of one tensor, (gather, scatter).

    Budget: a slice sent n-1 times in each pass, four times for both there and
    back. An all-reduce counts double.
    """
    raise NotImplementedError("not solved yet")
