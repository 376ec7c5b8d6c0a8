"""context_parallel.gather_keys: All keys and values at once.

rankwise check context_parallel.gather_keys
rankwise hint context_parallel.gather_keys

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


def gathered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    group: ProcessGroup,
) -> Tensor:
    """All keys and values at once.

    Llama 3 was trained on long texts without a ring. Each rank keeps its own
    queries and gathers the keys and values of all ranks in one collective; then
    attention is that of one process, with the rows of the mask that belong to
    its tokens. With grouped queries there are few heads of keys, so this is
    little to send.

    Each rank uses the keys of a token for its own queries. Whose gradients make
    up the gradient of my keys? Going back is a collective again.

    Ranks may hold tokens in any order: contiguous, a piece of the head and one
    of the tail, every n-th. All that you need to know is where each token
    stands. A query sees the keys that stand at its own position or before it.

    Given is `attend(query, key, value, seen)`. Several heads of queries may
    look at one of keys: [B, H, Q, d] with [B, K, S, d]. `seen` is [Q, S] of
    bool. It returns the output, [B, H, Q, d], and its logsumexps, [B, H, Q].
    Autograd goes back through it. It does not go back through a collective of
    torch.distributed: for that, write a `torch.autograd.Function`.
    `all_gather_single(out, x, group=group)` and
    `reduce_scatter_single(out, x, group=group)` see memory: the longer tensor
    is contiguous, and has n times as many rows (dim 0) as the other.

    Args:
        query: [B, H, S/n, d], of this rank's tokens.
        key, value: [B, K, S/n, d]; K divides H.
        positions: [n, S/n], where the tokens of each rank stand, the same on
            every rank.
        group: n ranks. Any n.

    Returns: [B, H, S/n, d], with gradients for query, key and value.

    Budget: one collective each way, and a rank's keys and values sent n-1 times
    each way.
    """
    raise NotImplementedError("not solved yet")
