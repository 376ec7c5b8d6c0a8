"""context_parallel.documents_by_work: Documents by work.

rankwise check context_parallel.documents_by_work
rankwise hint context_parallel.documents_by_work

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def share_documents(lengths: Sequence[int], ranks: int) -> list[int]:
    """Documents by work.

    Texts of many lengths fill a batch, and no token looks at another document.
    Whole documents are shared out to ranks. Give each the same number of
    tokens, and one rank will have a long text and another many short ones. But
    attention compares each token with all of its document: a text of 40 tokens
    is as much work as sixteen of 10, which have four times as many tokens. All
    ranks wait for the one that has most work.

    Share out the documents so that the rank with most work, the sum of the
    squares of its documents' lengths, has little more than it must. No quick
    way to the best share is known. It is easy to be close: with n ranks, 4/3 -
    1/(3n) times the best is what passes, for any lengths.

    Args:
        lengths: of the documents, in tokens, each at least 1, in any order.
        ranks: n, at least 1. There may be more of them than documents.

    Returns: for each document the rank that gets it, 0 to n - 1. Where several
    shares are good, any will do.

    Budget: 200,000 documents for 4,000 ranks in two seconds of processor time;
    100 + 10 for each document and each rank are the lines that it may run.
    """
    raise NotImplementedError("not solved yet")
