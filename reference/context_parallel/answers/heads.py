"""Heads in the place of tokens, and back: Ulysses in a page, and what it does where heads of keys are too few.

Rank r comes with some tokens of all heads, attends to all tokens with some heads, and leaves with its tokens. Heads of
queries and those of keys that they look at must arrive at the same rank. With K heads of keys on n ranks there is no
such share where n does not divide K; with copies of each there is: with lcm(K, n) / K of them, and no fewer.

Jacobs et al. 2023, "DeepSpeed Ulysses"; Ainslie et al. 2023, "GQA".
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.context_parallel.answers.exchange import all_to_all
from reference.context_parallel.plain import attend


def ulysses(query: Tensor, key: Tensor, value: Tensor, group: ProcessGroup) -> Tensor:
    """Causal attention of this rank's tokens, the r-th slice of the sequence, to those of all ranks.

    Args:
        query: [B, H, S / n, d], of this rank's tokens; n divides H.
        key, value: [B, K, S / n, d]; n divides K, and K divides H.
        group: n ranks.

    Returns:
        [B, H, S / n, d].
    """
    n = dist.get_world_size(group)
    packed = torch.cat([x.unflatten(1, (n, -1)) for x in (query, key, value)], dim=2)  # [B, n, heads, S / n, d]
    received = _Exchange.apply(packed.movedim(1, 0), group)  # from each rank its tokens
    every = received.movedim(0, 2).flatten(2, 3)
    query, key, value = every.split([x.shape[1] // n for x in (query, key, value)], dim=1)
    seen = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()
    out = attend(query, key, value, seen)[0]
    tokens = out.unflatten(2, (n, -1)).movedim(2, 0)
    return _Exchange.apply(tokens, group).movedim(0, 1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    """Row j goes to rank j. Its backward is the same: what came from rank i goes back there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradient, ctx.group), None


def _exchanged(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out


def ulysses_with_copies(
    query: Tensor, key: Tensor, value: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor], group: ProcessGroup
) -> Tensor:
    """The same where n divides H, but not K: with as few copies of each head of keys and values as will do.

    Args:
        query: [B, H, S / n, d], of this rank's tokens; n divides H.
        key, value: [B, K, S / n, d]; K divides H.
        attend: causal attention of [B, h, S, d] to keys and values [B, k, S, d].
        group: n ranks.

    Returns:
        [B, H, S / n, d].
    """
    n, heads = dist.get_world_size(group), key.shape[1]
    copies = math.lcm(heads, n) // heads
    key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))
    packed = torch.cat([x.unflatten(1, (n, -1)) for x in (query, key, value)], dim=2)
    every = all_to_all(packed, group, split_dim=1, join_dim=3).squeeze(1)
    out = attend(*every.split([x.shape[1] // n for x in (query, key, value)], dim=1))
    return all_to_all(out, group, split_dim=2, join_dim=1)
