"""context_parallel.zigzag_positions: Zigzag positions.

rankwise check context_parallel.zigzag_positions
rankwise hint context_parallel.zigzag_positions

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def zigzag_rotary(x: Tensor, base: float, rank: int, ranks: int) -> Tensor:
    """Zigzag positions.

    With causal attention a token sees those before it. If rank 0 has the first
    tokens and rank n-1 the last, rank 0 has little to do, and all wait for rank
    n-1. So cut the sequence into 2n chunks. Each rank gets two of them: one of
    the head, and the one that is as far from the end as the first is from the
    beginning:

        chunk    0  1  2  3  4  5  6  7
        rank     0  1  2  3  3  2  1  0

    Now the tokens of a rank do not stand in a row. Whatever depends on a
    token's position must know it. Rotary embeddings do: they turn features i
    and d/2 + i of a token at position p by the angle p · base^(-2i/d):

        (a, b)  ->  (a cos - b sin, a sin + b cos)

    If the angles belong to other positions than the tokens, nothing fails, and
    a model learns badly.

    Take a rank's tokens out of the sequence, first those of the head, then
    those of the tail, each in its order, and turn them.

    Args:
        x: [B, S, d], all tokens. d is even.
        base: of the angles, a float.
        rank: whose tokens to take.
        ranks: n. Chunk i is [S·i // 2n, S·(i+1) // 2n): 2n need not divide S,
            and chunks may be empty.

    Returns: [B, tokens of the rank, d], with the gradient for x.

    Budget: memory for the rank's tokens, not for all tokens once more.
    """
    raise NotImplementedError("not solved yet")
