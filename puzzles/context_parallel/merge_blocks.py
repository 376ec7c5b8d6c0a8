"""context_parallel.merge_blocks: Merge two blocks of attention.

rankwise check context_parallel.merge_blocks
rankwise hint context_parallel.merge_blocks

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def merge(
    out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge two blocks of attention.

    A query looks at keys. Its scores with them are dot products, and it gets
    the mean of their values, weighted by the softmax of its scores. A long
    sequence lies in blocks, and a block's keys and values are seen at another
    time than the other block's. Of each block alone a query has two things:
    `out`, which is the attention to that block as if there were no other, and
    `lse`, the logsumexp of its scores with that block:

        out = sum over keys of e^(score - lse) · value
        lse = log(sum over keys of e^score)

    These two are enough to find what the query gets of both blocks together,
    and the logsumexp of all scores. Then a third block can be merged in the
    same way.

    Scores may be large: around 1000, where e^score is more than a float64
    holds, or around -1000, where it is 0. A mask may hide a whole block from a
    query: then its `lse` is -inf and its `out` is 0. Where both blocks are
    hidden, so is the result: -inf and 0. And autograd goes backward through
    your code: no gradient may be NaN. (`torch.logaddexp(-inf, -inf)` is -inf,
    and its gradient is NaN.)

    Args:
        out: [B, H, Q, d], what each query got of the first block.
        lse: [B, H, Q].
        other: [B, H, Q, d], what the same queries got of the second block.
        other_lse: [B, H, Q].

    Returns: out and lse of both blocks together, like `out` and `lse`, with
    gradients for all four arguments. That of a query that has seen nothing is
    0.

    Budget: 40 lines, however many queries there are.
    """
    raise NotImplementedError("not solved yet")
