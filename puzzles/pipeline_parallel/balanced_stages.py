"""pipeline_parallel.balanced_stages: Cut the layers into stages.

rankwise check pipeline_parallel.balanced_stages
rankwise hint pipeline_parallel.balanced_stages

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def balance(costs: Sequence[int], stages: int) -> list[int]:
    """Cut the layers into stages.

    A pipeline is a row of ranks, and each has some of the layers: a stage.
    While one stage works on a micro-batch, the next one works on the
    micro-batch before. So all of them go at the pace of the one that has most
    to do.

    Layers are not alike. After the last block of a language model comes the
    head, which often costs as much as two blocks. The embedding costs nearly
    nothing. And where blocks of a kind alternate, each has its own price.

    Cut the row of layers, in order, into p stages, so that the most expensive
    stage costs as little as can be.

    Args:
        costs: of each layer, in order, in microseconds: whole numbers, at least
            1.
        stages: p, at least 1 and at most as many as there are layers.

    Returns: p whole numbers: how many layers the first stage gets, the second,
    and so on. Each gets one or more. Where several cuts are equally good, any
    will do.

    Budget: 126 layers can be cut into 16 stages in 10^19 ways: it is impossible
    to try them all. 200 + 6 L² p lines, for L layers.
    """
    raise NotImplementedError("not solved yet")
