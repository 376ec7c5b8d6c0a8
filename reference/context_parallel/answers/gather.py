"""Attention with the keys and values of all ranks at once: Llama 3's way, as short as it can be.

Forward is one all-gather. Each rank's queries look at each rank's keys, so each rank finds a part of the gradient of
each block, and backward is one reduce-scatter. Where tokens are does not matter to the sum, only to the mask: a rank
that knows the positions of all tokens needs no certain layout.

Dubey et al. 2024, "The Llama 3 herd of models", sec. 3.3.2.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.context_parallel.plain import attend


def gathered_attention(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, group: ProcessGroup) -> Tensor:
    """Causal attention of this rank's tokens to those of all ranks.

    Args:
        query: [B, H, S / n, d], of this rank's tokens.
        key, value: [B, K, S / n, d]; K divides H.
        positions: [n, S / n], where the tokens of each rank stand in the sequence.
        group: n ranks.

    Returns:
        [B, H, S / n, d].
    """
    key, value = _Gathered.apply(torch.stack([key, value]), group)
    seen = positions[dist.get_rank(group)][:, None] >= positions.flatten()
    return attend(query, key, value, seen)[0]


class _Gathered(torch.autograd.Function):
    """All ranks' tokens side by side: [..., S / n, d] -> [..., S, d]."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        blocks = block.new_empty(dist.get_world_size(group), *block.shape)
        all_gather_single(blocks.flatten(0, 1), block, group=group)
        return blocks.movedim(0, -3).flatten(-3, -2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        parts = gradient.unflatten(-2, (dist.get_world_size(ctx.group), -1)).movedim(-3, 0).contiguous()
        own = torch.empty_like(parts[0])
        reduce_scatter_single(own, parts.flatten(0, 1), group=ctx.group)
        return own, None
