"""compression.two_level_bits: Eight bits within a node, four between nodes.

rankwise check compression.two_level_bits
rankwise hint compression.two_level_bits

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.answers.bits import pack, unpack
from reference.compression.plain import dequantise, quantise


def reduce_scatter_on_nodes(
    x: Tensor, block: int, intra: ProcessGroup, inter: ProcessGroup
) -> Tensor:
    """Eight bits within a node, four between nodes.

    Links between nodes are slow, so 4 bits should cross them, and once: the sum
    of a node, not what each of its ranks has. Within a node there is room for 8
    bits. Rank i of all wants the sum of chunk i; ranks of a node follow each
    other.

    Each rank quantises what it has in 8 bits, and sends each rank of its node
    all that this one and its neighbours on other nodes (the ranks with its
    number) are to sum. These are made numbers again and summed. The sums travel
    in 4 bits, each to the neighbour whose chunk it is, and are summed there. So
    each number is rounded twice, however many ranks there are.

    Given are `quantise(x, block, largest)`, which returns integers in int8 and
    a scale for each block, `dequantise(codes, scales)`, and for integers of 4
    bits (largest 7) `pack(codes)`, two to a byte, and its reverse
    `unpack(payload)`.

    Args:
        x: [N·L·m] in float32, where `block` divides m, and is even. It stays as
            it is.
        block: numbers that share a scale.
        intra: the L ranks of this node, in order.
        inter: the ranks that have this one's number, on each of the N nodes, in
            order.

    Returns: [m] in float32: the sum of this rank's chunk.

    Budget: (L-1)·N chunks in 8 bits within the node and N-1 chunks in 4 bits to
    other nodes, scales included.
    """
    raise NotImplementedError("not solved yet")
