"""Attention around a ring: blocks of keys and values travel, and in backward their gradients with them.

| function        | a rank sends                        | and at the end                                     |
|-----------------|-------------------------------------|----------------------------------------------------|
| `ring_forward`  | n-1 blocks, while others are looked at | every query has met every block                 |
| `ring_backward` | n-1 blocks and n gradients of blocks   | each gradient is at the rank whose keys it is of |

Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers".
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import start
from reference.context_parallel.plain import attend_backward, merge

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Attention to one block: query, key, value, seen -> out, lse. It takes its time."""


def ring_forward(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, attend: Attend, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries to all ranks' keys; a block travels while it is looked at.

    Args:
        query: [B, H, Q, d].
        key, value: [B, K, Q, d], this rank's.
        seen: [n, Q, Q] of bool, which of this rank's queries see which keys of each rank.
        attend: attention to one block.
        group: n ranks.

    Returns:
        out, [B, H, Q, d], and lse, [B, H, Q].
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    held = torch.stack([key, value])
    out, lse = torch.zeros_like(query), query.new_full(query.shape[:-1], -torch.inf)
    for step in range(n):
        incoming, requests = held, []
        if step < n - 1:
            incoming = torch.empty_like(held)
            requests = start([(held, (rank + 1) % n)], [(incoming, (rank - 1) % n)], group)
        out, lse = merge(out, lse, *attend(query, held[0], held[1], seen[(rank - step) % n]))
        for request in requests:
            request.wait()
        held = incoming
    return out, lse


def ring_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    seen: Tensor,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's queries, keys and values.

    Args:
        gradient: [B, H, Q, d], of out.
        query: [B, H, Q, d].
        key, value: [B, K, Q, d], this rank's.
        out, lse: [B, H, Q, d] and [B, H, Q], of all blocks together.
        seen: [n, Q, Q] of bool, which of this rank's queries see which keys of each rank.
        group: n ranks.

    Returns:
        Tensors like query, key and value.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    block, of_query = torch.stack([key, value]), torch.zeros_like(query)
    of_block = torch.zeros_like(block)
    for step in range(n):
        owner = (rank - step) % n
        more, *of_these = attend_backward(gradient, query, block[0], block[1], out, lse, seen[owner])
        of_query, of_block = of_query + more, of_block + torch.stack(of_these)
        of_block = _passed_on(of_block, group)
        if step < n - 1:
            block = _passed_on(block, group)
    return of_query, of_block[0], of_block[1]


def _passed_on(x: Tensor, group: ProcessGroup) -> Tensor:
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return x
    incoming = torch.empty_like(x)
    for request in start([(x, (rank + 1) % n)], [(incoming, (rank - 1) % n)], group):
        request.wait()
    return incoming
