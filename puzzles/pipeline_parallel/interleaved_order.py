"""pipeline_parallel.interleaved_order:
Around the ranks more than once (interleaved 1F1B).

rankwise check pipeline_parallel.interleaved_order
rankwise hint pipeline_parallel.interleaved_order

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from reference.pipeline_parallel.schedule import Action, Kind


def interleaved_order(rank: int, p: int, m: int, v: int) -> list[Action]:
    """Around the ranks more than once (interleaved 1F1B).

    The bubble is p-1 stages forward and back, so smaller stages make a smaller
    bubble. Cut the model into p v stages, v on each rank: rank r has the stages
    r, p + r, 2p + r, and so on. A micro-batch goes around the ranks v times.
    What each rank waits, while the pipeline fills and empties, is p-1 of these
    smaller stages.

    A rank now has a choice: the next micro-batch through its first stage, or an
    earlier one through its second. Micro-batches go in groups of p. A group
    passes one stage of the rank, then the next one: when its p-th micro-batch
    has left, the first has been around and is back. Backward is the same, from
    the last stage to the first. With p = 2, m = 4, v = 2, rank 0 has the stages
    0 and 2:

        forward     F0.0  F0.1  F2.0  F2.1  F0.2  F0.3  F2.2  F2.3
        backward    B2.0  B2.1  B0.0  B0.1  B2.2  B2.3  B0.2  B0.3

    As in 1F1B, a rank begins with some forwards, then alternates a forward and
    a backward, then does what is left of backward. It begins with (v-1) p
    forwards, which the first group needs to get to its last round, and with two
    for each rank after it: a micro-batch that passes these comes back after
    twice as many turns.

    Args:
        rank: 0 to p-1.
        p: ranks.
        m: micro-batches, numbered from 0; a multiple of p.
        v: stages on a rank; with v = 1 as `one_f_one_b_order`, with more
            forwards to begin with.

    Returns: the actions of this rank, in order.

    Budget, with F = 1 and B = 2 of these smaller stages: a bubble of
    (p-1)(F+B). With v stages of the v-th part of the layers, that is a v-th of
    the bubble of 1F1B. Activations, each of one stage and one micro-batch:
    (v-1) p + 2 (p-1-rank) + 1, at most m v; the chart counts those of all v
    stages of a rank as one. Where sends block, there is room for one message
    from each neighbour.
    """
    raise NotImplementedError("not solved yet")
