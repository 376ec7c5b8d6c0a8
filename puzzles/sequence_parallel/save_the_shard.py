"""sequence_parallel.save_the_shard: Save the slice, not what was gathered.

rankwise check sequence_parallel.save_the_shard
rankwise hint sequence_parallel.save_the_shard

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.sequence_parallel.plain import gather_slices, sum_slices


def column_linear(x: Tensor, weight: Tensor, group: ProcessGroup) -> Tensor:
    """Save the slice, not what was gathered.

    A column-parallel linear layer after a norm. The norm leaves a slice of the
    tokens on each rank; the layer needs all of them:

        forward      tokens = gather x                 y = tokens @ weight.T
        backward     gradient of weight = gradientᵀ @ tokens, over all tokens
                     gradient of x = (gradient @ weight), summed over the ranks,
                     this rank's slice of it

    Backward needs all tokens once more. A rank that keeps them from forward on
    has n times as much in memory as its share, in every layer, and sequence
    parallelism has saved nothing here. But they lie in slices on the ranks: a
    rank keeps its own, and backward gathers them again. (Megatron-LM does this,
    and hides the message behind the product that does not need it.)

    Write a `torch.autograd.Function`, by hand and without
    `torch.utils.checkpoint`, and return what its `apply` returns.
    `ctx.save_for_backward(...)` keeps tensors, `ctx.saved_tensors` has them
    again. `backward` returns one gradient for each argument of `forward` after
    ctx.

    Given are `gather_slices(x, group)`, [B, S/n, D] -> [B, S, D], and
    `sum_slices(x, group)`, [B, S, D] -> [B, S/n, D], which adds up what all
    ranks have made and gives each its slice. No gradients pass through them.

    Args:
        x: [B, S/n, D], this rank's tokens.
        weight: [F/n, D], this rank's rows.
        group: n ranks. Any n.

    Returns: [B, S, F/n], this rank's features of all tokens.

    Budget: between forward and backward, nothing but the output is there. A
    slice is sent n-1 times in each of three passes.
    """
    raise NotImplementedError("not solved yet")
