"""collectives.hierarchical_all_reduce: All-reduce over nodes of several ranks.

rankwise check collectives.hierarchical_all_reduce
rankwise hint collectives.hierarchical_all_reduce

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.all_gather import ring as all_gather
from reference.collectives.all_reduce import ring as all_reduce
from reference.collectives.reduce_scatter import ring as reduce_scatter

SUM = dist.ReduceOp.SUM


def hierarchical(
    x: Tensor, intra: ProcessGroup, inter: ProcessGroup, op: dist.ReduceOp = SUM
) -> None:
    """All-reduce over nodes of several ranks.

    Every rank brings a tensor `x`. Afterwards every rank's `x` holds the sum of
    all of them, in place. The ranks live in nodes: links within a node are
    fast, those between nodes are slow. Let as little as possible cross between
    nodes: of each node's tensors only their sum, and of the sum each rank only
    its part.

    Given are the three rings that you know:
    `reduce_scatter(x, out, group, op)`, `all_reduce(x, group, op)` and
    `all_gather(x, out, group)`.

    Args:
        x: contiguous, flat, of the same length and dtype on every rank. Its
            length need not divide.
        intra: the l ranks of this node; as many on every node.
        inter: the m ranks that have the same number within their nodes, one on
            each.
        op: how to combine.

    Budget: 2(l-1) + 2(m-1) steps. A rank sends 2(l-1)/l of the tensor within
    its node, and 2(m-1)/m of a part, 1/l of the tensor, to other nodes.
    """
    raise NotImplementedError("not solved yet")
