"""Attention in one process, with a number for every pair of tokens: what all ways are held to."""

import torch
from torch import Tensor

from reference.choices import ContextLayout
from reference.context_parallel.layouts import layout
from reference.context_parallel.tokens import Mask


def dense(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, sink: Tensor | None = None) -> Tensor:
    """[B, H, S, d] of queries, [B, K, S, d] of keys and values; `seen` [S, S] of bool. Who sees nothing gets zeros."""
    times = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    if sink is not None:
        logits = sink[None, :, None, None].expand(*scores.shape[:3], 1)
        return scores.new_ones(()) * torch.cat([scores, logits], -1).softmax(-1)[..., :-1] @ value
    return scores.softmax(-1) @ value


def seen_by_each(sequence: int, mask: Mask, documents: list[int] | None = None) -> Tensor:
    """Which tokens of a whole sequence see which: [S, S] of bool."""
    (tokens,) = layout(ContextLayout.CONTIGUOUS, sequence, 1, documents=documents).tokens
    return mask.allows(tokens, tokens)
