"""Which axis of a mesh goes where on a cluster of nodes, so that what all of them send takes least time.

An axis with its inner neighbours fills blocks of consecutive ranks. Where such blocks fit into nodes without a
remainder, none of its groups leaves a node; where they do not, some group does, and the whole step waits for it. So
what counts is which axes are inside, not their order: a choice among 2^k, and all k! orders show it as well.

Narayanan et al. 2021 (PTD-P), takeaway 1: tensor parallelism within nodes, pipelines across.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations


def order_of_five_axes(
    sizes: Mapping[str, int], each: Mapping[str, float], node: int, intra: float, inter: float
) -> list[str]:
    """The names of the axes, the outermost first, in an order in which they take least time.

    Args:
        sizes: ranks along each axis.
        each: bytes that a rank sends along each axis.
        node: ranks of a node. Ranks fill whole nodes, one after another.
        intra, inter: bytes per second within a node, and between nodes.
    """

    def seconds(order: Sequence[str]) -> float:
        total, block = 0.0, 1
        for axis in reversed(order):
            if sizes[axis] > 1:
                block *= sizes[axis]
                total += each[axis] / (intra if node % block == 0 else inter)
        return total

    return list(min(permutations(sizes), key=seconds))
