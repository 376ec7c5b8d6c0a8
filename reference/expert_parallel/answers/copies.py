"""A token travels once to each node that has experts for it, and one row comes back.

A copy says which of the token's experts it is for, and how much each of them counts: so the node weighs and adds up
what its own experts make, and returns a row where k would have returned otherwise. `two_level` is this with the
exchange inside of a node behind it.

DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.2.2.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .exchange import exchange_rows


def mixture_over_nodes(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    experts: int,
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """What all experts make of this rank's tokens: [T, D] -> [T, D].

    Args:
        x: [T, D]; there may be no tokens.
        chosen: [T, k] of int64, experts of each token.
        weights: [T, k], of what they make.
        experts: E, as many on each node, in order.
        compute: what experts of this node make, weighed and added: of rows [N, D], experts [N, k], where -1 stands for
            none, and weights [N, k], it makes [N, D].
        group: n ranks, one on each node.
    """
    n = dist.get_world_size(group)
    nodes, node_of = torch.arange(n), chosen // (experts // n)
    is_there = (node_of == nodes[:, None, None]).any(-1)  # [n, T]
    node, token = is_there.nonzero(as_tuple=True)  # of each copy, node by node
    sent = is_there.sum(1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    there, back = sent.tolist(), received.tolist()
    numbers = chosen[token].masked_fill(node_of[token] != node[:, None], -1)
    parts = x[token], numbers, weights[token]
    rows, numbers, shares = (exchange_rows(part, there, back, group) for part in parts)
    made = exchange_rows(compute(rows, numbers, shares), back, there, group)
    return torch.zeros_like(x).index_add(0, token, made)
