"""decentralized.mixing_rate: How fast a ring agrees.

rankwise check decentralized.mixing_rate
rankwise hint decentralized.mixing_rate

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def ring_rate(ranks: int, keep: float) -> float:
    """How fast a ring agrees.

    n ranks in a ring gossip: in each round every rank keeps the part `keep` of
    its own value, and takes half of the rest from its left neighbour and half
    from the right one. All values together are a vector, a round multiplies it
    by a matrix, and the mean stays. By what factor does the distance from the
    mean shrink in a round, if it shrinks as slowly as it can?

    It is the largest eigenvalue of the matrix, without its sign, beside the 1
    that belongs to the mean. The matrix is a circulant: wave k, cos(2 π k r /
    n) over ranks r, is an eigenvector.

    Args:
        ranks: n, 1 or more. With 2 ranks both neighbours are the same one, with
            1 a rank is its own neighbour.
        keep: from 0 to 1.

    Returns: the factor, from 0 to 1; 0.0 for one rank.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
