"""tensor_parallel.attention_heads: Attention, shared by heads.

rankwise check tensor_parallel.attention_heads
rankwise hint tensor_parallel.attention_heads

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.tensor_parallel.plain import enter, leave


def attention(
    x: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    heads: int,
    group: ProcessGroup,
) -> Tensor:
    """Attention, shared by heads.

    Attention has H heads of d features each. A head makes queries, keys and
    values of its own, compares them with each other, and knows of no other
    head. Only the output matrix brings together what they found, as a sum. So
    give each rank H / n heads. Each computes with them, forward and backward,
    as if there were no others, and one sum on the way there and one on the way
    back make it whole.

        query = x Qᵀ, key = x Kᵀ, value = x Vᵀ
        cut into heads of d features
        head  = softmax(query keyᵀ / √d) value
        a token sees itself and what was before it
        y     = (all heads side by side) Oᵀ

    Given are f and g, as `enter(x, group)` and `leave(x, group)`. For the heads
    themselves there is `torch.nn.functional.scaled_dot_product_attention(q, k,
    v, is_causal=True)` with tensors [B, heads, S, d].

    Args:
        x: [B, S, D], the same on every rank.
        query, key, value: [H / n · d, D], the rows of this rank's heads, d for
            the first, then d for the next.
        output: [D, H / n · d], the columns that belong to them.
        heads: H, of all ranks together. n divides it.
        group: n ranks. Any n.

    Returns: y, [B, S, D], the same on every rank, with gradients for x (all of
    it, the same on every rank) and for this rank's weights. There is no
    residual connection here.

    Budget: one all-reduce of a tensor like x on the way there, and one on the
    way back.
    """
    raise NotImplementedError("not solved yet")
