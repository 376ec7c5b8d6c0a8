"""Whole documents for ranks, shared out by work: attention of a document costs the square of its length.

Which share is best is hard to find (number partitioning is NP-hard). But longest first, each to the rank that has least
work so far, is never more than 4/3 - 1/(3n) times the best, and in practice close to it.

Graham 1969, "Bounds on multiprocessing timing anomalies".
"""

import heapq
from collections.abc import Sequence


def share_documents(lengths: Sequence[int], ranks: int) -> list[int]:
    """Give each document to a rank, so that the rank with most work has little more than it must.

    Args:
        lengths: of documents, in tokens, each at least 1.
        ranks: n.

    Returns:
        The rank of each document.
    """
    owners = [0] * len(lengths)
    least = [(0, rank) for rank in range(ranks)]  # work, and the rank that has it: a heap
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        work, rank = least[0]
        owners[document] = rank
        heapq.heapreplace(least, (work + lengths[document] ** 2, rank))
    return owners
