"""context_parallel.ulysses: Ulysses: to heads and back.

rankwise check context_parallel.ulysses
rankwise hint context_parallel.ulysses

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.context_parallel.plain import attend


def ulysses(
    query: Tensor, key: Tensor, value: Tensor, group: ProcessGroup
) -> Tensor:
    """Ulysses: to heads and back.

    Attention treats each head by itself, everything else each token. So while
    attention lasts, share out heads and not tokens: rank r comes with the r-th
    slice of the sequence, of all heads; it gets all tokens of the r-th n-th of
    the heads, computes their attention as one process would; and gives each
    rank the output of its tokens.

        [B, H, S/n, d]  --all-to-all-->  [B, H/n, S, d]
        [B, H/n, S, d]  --attention-->   [B, H/n, S, d]
        [B, H/n, S, d]  --all-to-all-->  [B, H, S/n, d]

    That is a transposition there and one back. A rank sends less, the more
    ranks there are; a ring does not. What is the gradient of a transposition?

    Given is `attend(query, key, value, seen)`: [B, H, S, d] with [B, K, S, d],
    and `seen`, [S, S] of bool: which query sees which key. Here each sees those
    up to its own. It returns the output and its logsumexps. Autograd goes back
    through it, and not through `dist.all_to_all_single(out, x, group=group)`,
    for which you need a `torch.autograd.Function`. That call sees memory: both
    tensors are contiguous, and the r-th n-th of the rows (dim 0) of `x` goes to
    rank r.

    Args:
        query: [B, H, S/n, d], of this rank's tokens; n divides H.
        key, value: [B, K, S/n, d]; n divides K, and K divides H.
        group: n ranks. Any n.

    Returns: [B, H, S/n, d], with gradients for query, key and value.

    Budget: two collectives there and two back, and (n-1)/n of queries, keys,
    values and outputs sent each way.
    """
    raise NotImplementedError("not solved yet")
