"""tensor_parallel.grouped_queries: More ranks than heads of keys and values.

rankwise check tensor_parallel.grouped_queries
rankwise hint tensor_parallel.grouped_queries

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

from reference.tensor_parallel.plain import enter, leave


def grouped_queries(
    x: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    kv_heads: int,
    neighbours: Callable[[int], ProcessGroup],
    group: ProcessGroup,
) -> Tensor:
    """More ranks than heads of keys and values.

    With grouped queries there are fewer heads of keys and values than of
    queries: K of them, and H / K neighbouring heads of queries look at the same
    one. Llama 3 has K = 8. Where n is at most K, each rank has K / n of them.
    Where n is larger, there are not enough, and n / K ranks get a copy of the
    same head. Ranks share the heads of queries as before: rank r has the r-th
    n-th of them.

    Which heads of keys and values do this rank's queries look at? And whose
    gradients make up the gradient of a head that several ranks have?

    Given are f and g, as `enter(x, group)` and `leave(x, group)`, and
    `neighbours(size)`, which cuts the n ranks into groups of `size` neighbours
    and gives you the one that this rank is in. Every rank has to ask for the
    same size. `torch.nn.functional.scaled_dot_product_attention(q, k, v,
    is_causal=True, enable_gqa=True)` lets several heads of q look at one of k
    and v, [B, heads, S, d] each.

    Here `keys` and `values` have all heads, as they are read from a file. Take
    those that this rank needs. The gradient of all others stays zero; the
    gradient of its own must be whole.

    Args:
        x: [B, S, D], the same on every rank.
        query: [H / n · d, D], the rows of this rank's heads of queries.
        keys, values: [K · d, D], all heads, one after the other, the same on
            every rank.
        output: [D, H / n · d], the columns of this rank's heads.
        kv_heads: K; it divides n, or n divides it.
        neighbours: of a size, the group of so many neighbours.
        group: n ranks. Any n.

    Returns: y, [B, S, D], the same on every rank, with gradients for x and all
    weights.

    Budget: one all-reduce of a tensor like x each way, and for keys and for
    values one all-reduce of a head's weights among the ranks that have it.
    """
    raise NotImplementedError("not solved yet")
