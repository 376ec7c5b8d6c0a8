"""pipeline_parallel.one_f_one_b_order: Go backward as soon as you can (1F1B).

rankwise check pipeline_parallel.one_f_one_b_order
rankwise hint pipeline_parallel.one_f_one_b_order

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from reference.pipeline_parallel.schedule import Action, Kind


def one_f_one_b_order(rank: int, p: int, m: int) -> list[Action]:
    """Go backward as soon as you can (1F1B).

    GPipe's stages hold the activations of all m micro-batches, because no rank
    goes backward before all have gone forward. But the last rank could do so at
    once: it has the loss of micro-batch 0 before anything else. And what has
    gone backward needs no activations any more.

    So let rank r begin with as many forwards as it takes to give each rank
    after it one, and then alternate: one forward, one backward. What is left at
    the end is backward alone. With p = 3 and m = 5:

        rank 0      F0  F1  F2  B0  F3  B1  F4  B2  B3  B4
        rank 1      F0  F1  B0  F2  B1  F3  B2  F4  B3  B4
        rank 2      F0  B0  F1  B1  F2  B2  F3  B3  F4  B4

    Each waits where it must: the check simulates it with F = 1 and B = 2, and
    shows you the chart. An action is
    `Action(Kind.FORWARD, stage, micro_batch)`, or `Kind.BACKWARD`.

    Args:
        rank: 0 to p-1. It has stage `rank`.
        p: ranks, and stages.
        m: micro-batches, numbered from 0. There may be fewer than ranks.

    Returns: the actions of this rank, in order.

    Budget: GPipe's bubble, (p-1)(F+B). Rank r holds at most p-r activations.
    Where sends block, a channel has room for one message.
    """
    raise NotImplementedError("not solved yet")
