"""zero_bubble.zb_h1_order: The order of ZB-H1.

rankwise check zero_bubble.zb_h1_order
rankwise hint zero_bubble.zb_h1_order

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from reference.pipeline_parallel.schedule import Action, Kind


def zb_h1_order(rank: int, p: int, m: int) -> list[Action]:
    """The order of ZB-H1.

    Backward in two halves: I, the gradient of the input, for which the stage
    before waits, and W, those of the weights, for which no rank waits. In 1F1B
    a rank waits while micro-batches drain. With W apart there is something to
    do then, if enough of it was put off; but what is put off holds its
    activations.

    ZB-H1 is 1F1B with I in place of B. After each I a rank does one W, but of
    an older micro-batch; by how many, memory decides: no rank holds more
    activations than rank 0 does in 1F1B, which is p. Look at the last rank,
    which holds one activation in 1F1B. How many W may it be behind? And rank 0?

    Actions are `Action(Kind.FORWARD, stage, k)`, F, of micro-batch k; I is
    `Kind.INPUT`, W is `Kind.WEIGHT`. I waits for I of the stage after, on the
    last stage for its own F; W for its own I. An activation is held from F to
    W.

    Args:
        rank: 0 to p-1. It has stage number `rank`.
        p: ranks, and stages.
        m: micro-batches, numbered from 0.

    Returns: the actions of this rank, in order.

    Budget: a bubble of (p-1)(F+I-W), and a W more for each micro-batch that m
    is short of p; activations of p micro-batches, or m if that is less.
    """
    raise NotImplementedError("not solved yet")
