"""All-reduce on two levels of links: within nodes first, so that the slow links carry as little as they can.

This is `plain.ring_time` with: links of two kinds.

1. reduce-scatter within each node: every rank holds the node's sum of 1/ranks_per_node of the tensor;
2. all-reduce of that piece between the ranks that hold the same piece, one in each node;
3. all-gather within each node.

A flat ring of the same ranks moves at the speed of its slowest link in all of its 2(n-1) steps.
"""


def hierarchical_time(
    nodes: int,
    ranks_per_node: int,
    size: float,
    intra: tuple[float, float],
    inter: tuple[float, float],
) -> float:
    """Seconds that a hierarchical all-reduce takes, with rings on both levels.

    Args:
        nodes: how many nodes.
        ranks_per_node: ranks in each, each with its own link to the other nodes.
        size: bytes of the tensor that each rank brings.
        intra: (α, β) within a node, in seconds and bytes per second.
        inter: (α, β) between nodes.
    """
    piece = size / ranks_per_node
    within = 2 * (ranks_per_node - 1) * (intra[0] + piece / intra[1])
    between = 2 * (nodes - 1) * (inter[0] + piece / nodes / inter[1])
    return within + between


def flat_ring_time(
    nodes: int,
    ranks_per_node: int,
    size: float,
    intra: tuple[float, float],
    inter: tuple[float, float],
    nics: int = 1,
) -> float:
    """Seconds that rings through all ranks take, node after node: each step waits for its slowest link.

    With several NICs a node, there is a ring through each of them, for its part of the tensor. The rings share what is
    within a node, where each rank sends what all of them send.

    Arguments as for `hierarchical_time`, and `nics` of each node.
    """
    n = nodes * ranks_per_node
    links = ([intra] if ranks_per_node > 1 else []) + ([(inter[0], nics * inter[1])] if nodes > 1 else [])
    return 2 * (n - 1) * max((alpha + size / n / beta for alpha, beta in links), default=0.0)
