"""context_parallel.copied_heads: More ranks than heads of keys.

rankwise check context_parallel.copied_heads
rankwise hint context_parallel.copied_heads

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

from reference.context_parallel.answers.exchange import all_to_all


def ulysses_with_copies(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """More ranks than heads of keys.

    Ulysses shares out heads. With grouped queries there are H of queries and
    fewer of keys and values, K: H / K neighbouring heads of queries look at the
    same one. Ranks must share out the heads of queries equally, or all wait for
    the one that has most: rank r computes the r-th n-th of them. Each of them
    needs its head of keys at the same rank. But 2 heads of keys do not make 4
    equal shares, and with 12 heads of queries over 4 of keys, 3 ranks have 4
    heads of queries each, of which 3 look at one head of keys, and the fourth
    at the next one.

    The way out are copies: send a head of keys to each rank whose queries look
    at it. Let each rank get equally many, and let `attend` pair them with its
    queries as usual. How many copies of each head does that take, and how few
    will do? And what becomes of the gradients of the copies?

    Given is `all_to_all(x, group, split_dim, join_dim)`, through which autograd
    goes back: it cuts `x` along `split_dim` into n equal parts, gives the j-th
    to rank j, and puts what comes side by side along `join_dim`.

    Args:
        query: [B, H, S/n, d], of this rank's tokens, the r-th slice of the
            sequence; n divides H.
        key, value: [B, K, S/n, d]; K divides H, and need not divide n, nor n
            it.
        attend: causal attention of all tokens: `attend(query, key, value)` of
            [B, h, S, d], [B, k, S, d] twice, returns [B, h, S, d]. k divides h,
            and h / k neighbouring heads of queries look at the same one of
            keys.
        group: n ranks. Any n.

    Returns: [B, H, S/n, d], with gradients for query, key and value.

    Budget: of all ranks together lcm(K, n) heads of keys and of values, in
    exchange. (It is possible with fewer, if ranks get unequal numbers.)
    """
    raise NotImplementedError("not solved yet")
