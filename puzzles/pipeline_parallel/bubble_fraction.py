"""pipeline_parallel.bubble_fraction: The bubble, as a formula.

rankwise check pipeline_parallel.bubble_fraction
rankwise hint pipeline_parallel.bubble_fraction

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def bubble_fraction(p: int, m: int, v: int) -> float:
    """The bubble, as a formula.

    A batch is cut into m micro-batches and the model into p stages, one on each
    rank. Each stage takes F forward and B backward for a micro-batch. The first
    micro-batch is at the last rank only after p-1 others have computed, and its
    gradient is back at the first only after p-1 others have again: until the
    pipeline is full, and while it empties, ranks wait. That is the bubble.

    Interleaved, each rank has v stages of a v-th of the layers: 0, p, 2p, ...
    on rank 0. A micro-batch goes around the ranks v times. Filling and emptying
    take p-1 stages as before, but these are v times as small.

    Which part of a step does a rank wait, with all stages alike and messages
    that take no time?

    Args:
        p: ranks.
        m: micro-batches; a multiple of p where v is not 1.
        v: stages on a rank; 1 for GPipe and 1F1B.

    Returns: a float from 0 to 1: 0 where no rank waits.

    Budget: a formula. F and B are not among the arguments: why?
    """
    raise NotImplementedError("not solved yet")
