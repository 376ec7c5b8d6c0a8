"""Experts choose tokens, for comparison: every expert is as busy as any other, and no loss is needed.

Each expert takes the tokens that suit it best, as many as an even share (Zhou et al. 2022, "Mixture-of-experts with
expert choice routing", sec. 3.2). Some tokens get many experts, and some none. It looks at all tokens of a window at
once: so whether a token is taken depends on those after it, and a model that predicts the next token would learn from
what it will not have when it writes. That is why language models let tokens choose.
"""

import torch
from torch import Tensor

from reference.models.moe_config import MoEConfig
from reference.models.routing import NOWHERE, first_of, room


def chosen_by_experts(scores: Tensor, config: MoEConfig) -> Tensor:
    """Which experts take a token: the best `room` tokens of a window for each.

    Args:
        scores: [B, S, E].
        config: with a capacity; a factor of 1 gives each expert an even share, k S / E tokens.

    Returns:
        [B, S, E] of int64: its experts in order, then `NOWHERE`; a token may have any number, from none to E.
    """
    taken = torch.zeros_like(scores).bool()
    best = first_of(scores.transpose(1, 2), room(scores.shape[1], config))  # [B, E, c]
    taken.transpose(1, 2).scatter_(2, best, True)
    numbers = torch.arange(config.experts, device=scores.device).expand(scores.shape)
    in_order = numbers.masked_fill(~taken, config.experts).sort(dim=-1).values
    return in_order.masked_fill(in_order == config.experts, NOWHERE)


def experts_of_tokens(chosen: Tensor) -> Tensor:
    """How many tokens have no expert, one, two, ...: [B, S, E] -> [E + 1] of int64."""
    return torch.bincount((chosen >= 0).sum(-1).flatten(), minlength=chosen.shape[-1] + 1)


def looks_ahead(scores: Tensor, config: MoEConfig) -> float:
    """Share of tokens whose experts would be others if the window ended with them. Of tokens that choose it is zero.

    Args:
        scores: [1, S, E].
        config: as for `chosen_by_experts`.
    """
    whole, tokens = chosen_by_experts(scores, config), scores.shape[1]
    ends = [chosen_by_experts(scores[:, : end + 1], config)[0, end] for end in range(tokens)]
    return sum(not torch.equal(end, at) for end, at in zip(ends, whole[0], strict=True)) / tokens
