"""networks.hierarchical_time: Predict a hierarchical all-reduce.

rankwise check networks.hierarchical_time
rankwise hint networks.hierarchical_time

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def hierarchical_time(
    nodes: int,
    ranks_per_node: int,
    size: float,
    intra: tuple[float, float],
    inter: tuple[float, float],
) -> float:
    """Predict a hierarchical all-reduce.

    Links within a node are fast, links between nodes are slow. So an all-reduce
    on two levels goes in three phases:

    1. reduce-scatter around a ring within each node: every rank holds its
       node's sum of one piece of the tensor, 1/ranks_per_node of it;
    2. all-reduce of that piece, around a ring of the ranks that hold the same
       piece, one in each node. All these rings run at the same time, each rank
       with a link of its own;
    3. all-gather around a ring within each node.

    A message of b bytes takes α + b/β seconds on its link. How long until the
    last rank is done?

    Args:
        nodes: how many nodes, at least 1.
        ranks_per_node: ranks in each, at least 1.
        size: bytes of the tensor that each rank brings.
        intra: (α, β) of a link within a node, in seconds and bytes per second.
        inter: (α, β) of a link between nodes.

    Returns: seconds.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
