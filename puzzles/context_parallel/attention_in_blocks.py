"""context_parallel.attention_in_blocks: Attention in blocks.

rankwise check context_parallel.attention_in_blocks
rankwise hint context_parallel.attention_in_blocks

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def attention_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, block: int
) -> Tensor:
    """Attention in blocks.

    Attention has a score for each pair of a query and a key. With 131,072
    tokens that is 17 thousand million scores for each head: 34 GB in 16 bits.
    They need not exist at the same time. Go through the keys block by block,
    keep what the queries have got so far and the logsumexp of the scores so
    far, and correct both with each block. This is called online softmax.

        score = query · key / √d, or -inf where the key is not seen
        out = sum over keys of e^(score - lse) · value
        lse = log(sum over keys of e^score)

    Backward needs all scores once more. Autograd would keep them, all blocks of
    them. Write the backward yourself, in a `torch.autograd.Function`, and make
    them again, block by block. With P = e^(score - lse), where lse is that of
    all blocks together, and G, the gradient of out:

        gradient of value = Pᵀ G
        gradient of score = P · (G valueᵀ - m)
        m: for each query, the sum over d of G · out
        gradient of query = (gradient of score) key / √d
        gradient of key = (gradient of score)ᵀ query / √d

    Scores may be around 1000 or -1000, where e^score is no number for a
    float64. And there may be queries that see no key at all: these get 0, and
    no gradient is NaN.

    Args:
        query: [B, H, Q, d].
        key: [B, H, S, d].
        value: [B, H, S, d].
        seen: [Q, S] of bool, which query sees which key.
        block: how many keys make a block. The last block may have fewer.

    Returns: out, [B, H, Q, d], with gradients for query, key and value.

    Budget: memory for the scores of one block, not of all; and forward leaves
    out and lse for backward, beside what it was given. Your own code, not
    torch's `scaled_dot_product_attention`.
    """
    raise NotImplementedError("not solved yet")
