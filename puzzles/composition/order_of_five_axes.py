"""composition.order_of_five_axes: The order of five axes.

rankwise check composition.order_of_five_axes
rankwise hint composition.order_of_five_axes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping


def order_of_five_axes(
    sizes: Mapping[str, int],
    each: Mapping[str, float],
    node: int,
    intra: float,
    inter: float,
) -> list[str]:
    """The order of five axes.

    Ranks fill nodes, one node after another. Within a node they talk over fast
    links, between nodes over slow ones. In the order of the mesh's axes, the
    last counts fastest: its ranks are neighbours. So the order decides what
    takes which links. Which one is best?

    An axis takes each[axis] / intra seconds if all ranks of each of its groups
    are on one node, and each[axis] / inter if any group has ranks on two: all
    wait for the slowest. A step takes the sum over all axes. An axis of one
    rank says nothing and takes no time.

        12 ranks, nodes of 4
        dp, tp = 3, 4     along tp 0 1 2 3         within a node
        tp, dp = 4, 3     along dp 0 1 2, 3 4 5    3 and 4 are apart: slow

    Args:
        sizes: ranks along "pp", "dp_replicate", "dp_shard", "cp" and "tp", by
            name.
        each: bytes that a rank sends along each axis, by the same names.
        node: ranks of a node. It divides the number of all ranks.
        intra, inter: bytes per second within nodes, and between them.

    Returns: a list of the five names, the outermost first. Where several orders
    are equally good, any of them will do.

    Budget: 120 orders may be tried, with a few lines for each axis. No look at
    each rank.
    """
    raise NotImplementedError("not solved yet")
