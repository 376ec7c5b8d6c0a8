"""context_parallel.what_to_compute: Skip what the mask forbids.

rankwise check context_parallel.what_to_compute
rankwise hint context_parallel.what_to_compute

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def to_compute(
    layout: str, tokens: int, local: int, ranks: int, rank: int, owner: int
) -> tuple[int, int, int, int] | None:
    """Skip what the mask forbids.

    Blocks of keys come around a ring, and a mask hides some of them. With
    causal attention a token sees itself and those before it. A kernel that is
    given queries and keys looks at the positions of both and hides what is to
    be hidden; but it takes the time of all pairs that it is given. So give it
    only the rows and columns in which something is allowed: a rectangle, from
    one query to another and from one key to another. Of some blocks that is
    all, of some it is half, and of some it is nothing.

    Each rank has L positions, in one of three layouts; L is even:

        contiguous    rank r: from r·L on, L in a row
        zigzag        rank r: L/2 in a row from r·L/2 on, then L/2 in a row from
                      (2n-1-r)·L/2 on
        striped       rank r: r, r + n, r + 2n, ...

    The sequence may be shorter than n·L. What stands at S and after it is
    padding: it sees nothing and is seen by nothing. Queries and keys of a rank
    are counted from 0, in the order of their positions.

    Args:
        layout: "contiguous", "zigzag" or "striped".
        tokens: S, at least 1 and at most n·L.
        local: L.
        ranks: n.
        rank: whose queries.
        owner: whose keys.

    Returns: (first query, end of the queries, first key, end of the keys), the
    smallest rectangle that has all pairs which are allowed; None where none is
    allowed.

    Budget: no more pairs than that, and a formula: L may be 10^12.
    """
    raise NotImplementedError("not solved yet")
