"""All-reduce on nodes with several NICs, whose phases overlap: what NCCL does between nodes.

This is `hierarchical` with: several NICs in a node, trees, and phases that overlap.

A tensor travels in pieces: while one is between the nodes, the next is added up within them. So the time of a large
tensor is not the sum of what the two kinds of links take, but the larger of both. Per node, S the tensor, g ranks and
c NICs in each of N nodes, n = gN:

| algorithm          | bytes through each NIC                    | bytes through each rank's link within |
|--------------------|-------------------------------------------|---------------------------------------|
| a ring through each NIC (`flat_ring_time` with `nics`) | 2(n-1)/n · S/c | 2(n-1)/n · S             |
| two trees of nodes | S/c for 2 nodes, at most 2S/c             | 2(g-1)/g · S                          |
| two levels         | 2(N-1)/N · S/c, the least possible        | 2(g-1)/g · S                          |

Between two nodes a tree is nearly twice as fast as a ring: each node's sum goes over once. Bus bandwidth, which is
counted as if there were a ring, then exceeds what the NICs are sold as.

These are bounds from what the links are sold as. Measured on machines of eight GPUs (`lab.published.NODES`), the better
of ring and trees comes to 80 to 96 % of them between nodes and to 75 to 82 % within one: NVLink loses about a fifth to
its protocol, a NIC about a twentieth. They say nothing of switches that add (NVLS): one node of eight H200 reaches 107
% of a ring's bound that way.

NVIDIA NCCL 2.4 (2019) "double binary trees"; Sanders, Speck & Träff 2009; Cho et al. 2019, "BlueConnect".
"""

from collections import Counter

from reference.collectives.double_tree import edges


def overlapped_hierarchical_time(
    nodes: int,
    ranks_per_node: int,
    size: float,
    intra: tuple[float, float],
    inter: tuple[float, float],
    nics: int = 1,
) -> float:
    """Seconds of the three phases of `hierarchical_time` where pieces of the tensor are in all of them at once.

    The first piece pays the latencies of all phases, and the kind of link that has more to carry sets the pace.

    Args:
        nodes: N, how many nodes.
        ranks_per_node: g, ranks in each.
        size: S, bytes of the tensor that each rank brings.
        intra: (α, β) of a rank's link within a node, in seconds and bytes per second.
        inter: (α, β) of a NIC.
        nics: c, of each node; all of them can carry what any of its ranks has.
    """
    between = 2 * (nodes - 1) / nodes * size / nics / inter[1]
    latency = 2 * (ranks_per_node - 1) * intra[0] + 2 * (nodes - 1) * inter[0]
    return latency + max(_within(ranks_per_node, size, intra), between)


def tree_time(
    nodes: int,
    ranks_per_node: int,
    size: float,
    intra: tuple[float, float],
    inter: tuple[float, float],
    nics: int = 1,
) -> float:
    """Seconds of two binary trees of nodes, each for half of the tensor, with a chain of ranks within each node.

    Arguments as for `overlapped_hierarchical_time`. A node sends a half up to its parent, and the sum down to
    each of its children; the node that has most neighbours in both trees sets the pace.
    """
    neighbours = Counter(node for _, *ends in edges(nodes) for node in ends)
    between = max(neighbours.values(), default=0) * size / 2 / nics / inter[1]
    depth = (nodes - 1).bit_length()
    latency = 2 * (ranks_per_node - 1) * intra[0] + 2 * depth * inter[0]
    return latency + max(_within(ranks_per_node, size, intra), between)


def _within(ranks_per_node: int, size: float, intra: tuple[float, float]) -> float:
    """Seconds that a rank's link within its node is busy."""
    return 2 * (ranks_per_node - 1) / ranks_per_node * size / intra[1]
