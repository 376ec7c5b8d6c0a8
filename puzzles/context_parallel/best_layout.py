"""context_parallel.best_layout: Work of each rank, and the best layout.

rankwise check context_parallel.best_layout
rankwise hint context_parallel.best_layout

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def best_layout(
    tokens: int, ranks: int, window: int, block: int
) -> tuple[str, list[int]]:
    """Work of each rank, and the best layout.

    Ranks share out a sequence, and all wait for the one that has most to do. A
    token sees itself and the w - 1 tokens before it, as far as there are some:
    that is causal attention with a window of w, and without a window where w is
    at least S. Each pair of a token and one that it sees costs 1. Besides, a
    rank has to get the keys of others: for each other rank of which its tokens
    see at least one token, it pays for that rank's block.

    Three layouts, of S tokens on n ranks, where L = S / n is even:

        contiguous    rank r: from r·L on, L in a row
        zigzag        rank r: L/2 in a row from r·L/2 on, and L/2 in a row from
                      (2n-1-r)·L/2 on
        striped       rank r: r, r + n, r + 2n, ...

    In which one does the rank that has most to do have least?

    Args:
        tokens: S, which 2n divides.
        ranks: n.
        window: w, at least 1.
        block: the cost of another rank's block, a whole number.

    Returns: the name of that layout; and a list of three whole numbers, what
    the slowest rank costs in each of the layouts, in the order above. Where
    several layouts are equally good, any of them will do.

    Budget: 100 + 60 n lines, however many tokens there are.
    """
    raise NotImplementedError("not solved yet")
