"""context_parallel.stripe: Stripes.

rankwise check context_parallel.stripe
rankwise hint context_parallel.stripe

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def stripe(
    tokens: int, ranks: int, rank: int, owner: int
) -> tuple[int, int, int]:
    """Stripes.

    There is another way to share out the work of causal attention. Deal the
    tokens like cards: rank r gets tokens r, r + n, r + 2n, and so on. Then each
    rank has early tokens and late ones, and each block that comes around the
    ring has keys for nearly all of its queries.

    Between the queries of one rank and the keys of another the mask is a
    triangle. Count the tokens of each from 0: query a of the rank sees key b of
    the owner if b - a <= d. All that is to be found out is d, which a kernel
    takes as "causal, with the diagonal" or "causal, without it".

    Args:
        tokens: S, of the whole sequence. n need not divide it.
        ranks: n.
        rank: whose queries.
        owner: whose keys.

    Returns: three whole numbers: how many queries the rank has; d, which is 0
    or -1; and how many pairs there are of a query of the rank and a key of the
    owner that it sees. A token sees itself, and all tokens before it.

    Budget: a formula, for 10^15 tokens as for 10.
    """
    raise NotImplementedError("not solved yet")
