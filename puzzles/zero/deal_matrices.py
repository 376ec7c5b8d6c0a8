"""zero.deal_matrices: Deal matrices by what they cost.

rankwise check zero.deal_matrices
rankwise hint zero.deal_matrices

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def deal_matrices(shapes: list[tuple[int, int]], owners: int) -> list[int]:
    """Deal matrices by what they cost.

    Each matrix of a model gets an owner, who makes its updates orthogonal,
    while all others wait for the one who has most to do. A round of
    Newton-Schulz multiplies X of s rows and l columns, s ≤ l, by its own
    transpose (s²·l multiplications), that by itself (s³), and that by X (s²·l
    again): 2·s²·l + s³. A matrix on its side costs the same. So matrices with
    equally many elements may cost very different amounts, and to deal them out
    in turn, or by elements, leaves ranks idle.

    Deal as follows, which is never more than a third worse than the best: the
    most expensive matrix first, and of equally expensive ones the first in the
    list; each to the rank that has the least so far, and of those that have
    equally little, to the lowest.

    Args:
        shapes: (rows, columns) of each matrix.
        owners: how many ranks there are.

    Returns: a list with the rank of each matrix, in the order of `shapes`.

    Budget: a model has thousands of matrices, with experts a million, and there
    are thousands of ranks: to look at all ranks for each matrix takes too long.
    """
    raise NotImplementedError("not solved yet")
