"""expert_parallel.one_copy_to_a_node: One copy to a node.

rankwise check expert_parallel.one_copy_to_a_node
rankwise hint expert_parallel.one_copy_to_a_node

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.expert_parallel.answers.exchange import exchange_rows


def mixture_over_nodes(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """One copy to a node.

    Links between nodes are slow. A token has k experts, and with a row for each
    of them, k rows may cross such a link, and k come back, though two or three
    of them go to the same node. One row to each node that has experts for the
    token is enough. There it meets all of these; what they make is weighed and
    added up on the node, and one row comes back, to be added to those from
    other nodes.

    This rank speaks for its node. The group has one rank of each node, so
    whatever goes to another rank crosses a slow link. So do the numbers of the
    experts that a row is for, and their weights, and gradients later.

    Given is `exchange_rows(x, sent, received, group)`, through which autograd
    goes back: sent[j] rows of `x`, in order, go to rank j, and received[i] rows
    come from rank i, in order of ranks; both are lists. It takes whole numbers,
    too. How many rows come must be known before:
    `dist.all_to_all_single(out, x, group=group)` gives the j-th n-th of `x` to
    rank j.

    Args:
        x: [T, D], tokens. T may be 0, and differ from rank to rank.
        chosen: [T, k] of int64, the experts of each token, k different ones.
        weights: [T, k], of what they make. Gradients flow back through x and
            weights.
        experts: E; each node has E / n in order, the first one 0, 1, ...
        compute: what experts of this node make:
            `compute(rows, chosen, weights)`, of [N, D], [N, k] and [N, k],
            returns [N, D], for each row the sum over its experts of weight
            times what it makes. An expert of -1 is none, whatever its weight;
            one that is on another node is an error.
        group: n ranks, one on each node. Any n.

    Returns: [T, D], for each token the same sum over all its experts.

    Budget: for each copy D numbers, k experts and k weights there, D numbers
    back; in backward D there, D and k back; and one number for each pair of
    nodes.
    """
    raise NotImplementedError("not solved yet")
