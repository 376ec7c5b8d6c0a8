"""Which experts a token goes to, and how evenly that comes out: numbers alone, for any number of tokens.

    scores    softmax or sigmoid of a router's logits
    choose    the best k experts of each token, of the best groups of experts; equal scores: the expert that comes first
    weigh     how much of what each expert makes is added
    fit       what does not fit into an expert's capacity is dropped: it goes nowhere

Losses that keep experts busy are sums over tokens, given how many tokens *all* ranks have sent to each expert. Such
counts have no gradient. So parts of the loss simply add up over ranks and micro-batches, as those of `token_loss` do.

Shazeer et al. 2017, "Outrageously large neural networks"; Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch
transformers"; Zoph et al. 2022, "ST-MoE"; DeepSeek-AI 2024, "DeepSeek-V3", sec. 2.1.2.
"""

import torch
from torch import Tensor

from reference.models.moe_config import Gate, MoEConfig

NOWHERE = -1  # in the place of an expert: this choice of a token is dropped


def scores_of(logits: Tensor, config: MoEConfig) -> Tensor:
    """How well each expert suits a token: [..., E] -> the same, each above 0."""
    return logits.softmax(-1) if config.gate is Gate.SOFTMAX else logits.sigmoid()


def choose(scores: Tensor, config: MoEConfig, bias: Tensor | None = None) -> Tensor:
    """The experts of each token, the best first: [..., E] -> [..., k] of int64.

    Args:
        scores: as `scores_of` makes them.
        config: says how many, and of how many groups.
        bias: [E], added to choose with, and for nothing else.
    """
    biased = scores if bias is None else scores + bias
    if config.top_groups < config.expert_groups:
        grouped = biased.unflatten(-1, (config.expert_groups, -1))
        best = min(grouped.shape[-1], -(-config.top_k // config.top_groups))
        of_group = grouped.topk(best, dim=-1).values.sum(-1)  # DeepSeek-V3: of the best k / M experts of a node
        open_groups = torch.zeros_like(of_group).bool().scatter(-1, first_of(of_group, config.top_groups), True)
        biased = grouped.masked_fill(~open_groups[..., None], -torch.inf).flatten(-2)
    return first_of(biased, config.top_k)


def first_of(x: Tensor, k: int) -> Tensor:
    """Places of the k largest, in order; of equal ones, that which comes first. torch.topk leaves that open."""
    return x.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def weigh(scores: Tensor, chosen: Tensor, config: MoEConfig) -> Tensor:
    """How much of what each of a token's experts makes is added: [..., E] and [..., k] -> [..., k]."""
    weights = scores.gather(-1, chosen)
    if config.normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * config.scale


def room(tokens: int, config: MoEConfig) -> int:
    """How many tokens of a window an expert takes: its even share times the capacity factor, rounded up."""
    return int(-(-config.capacity * tokens * config.top_k // config.experts))


def fits(chosen: Tensor, config: MoEConfig) -> Tensor:
    """Which choices an expert has room for: all first choices come before the second ones, in the order of tokens.

    The rule looks at whole windows, so it does not depend on where tokens are, or how many windows a rank reads.

    Args:
        chosen: [B, S, k] of whole windows, in order; `NOWHERE` takes no room.
        config: says how much room there is.

    Returns:
        [B, S, k] of bool.
    """
    windows, tokens, k = chosen.shape
    in_turn = chosen.transpose(1, 2).reshape(windows, k * tokens, 1)
    wanted = in_turn == torch.arange(config.experts, device=chosen.device)
    before = (wanted.cumsum(1) * wanted).sum(-1)  # counts the choice itself
    kept = before <= room(tokens, config)
    return kept.view(windows, k, tokens).transpose(1, 2)


def counts_of(chosen: Tensor, experts: int) -> Tensor:
    """How many choices each expert got: [B, ..., k] -> [B, E] of int64. `NOWHERE` counts nowhere."""
    flat = chosen.flatten(1)
    counts = flat.new_zeros(len(chosen), experts + 1)
    return counts.scatter_add_(1, flat.where(flat >= 0, experts), torch.ones_like(flat))[:, :experts]


def balance_loss(scores: Tensor, counts: Tensor, is_token: Tensor, config: MoEConfig, tokens: int) -> Tensor:
    """This rank's part of the loss that is least where all experts get equally many tokens.

    E · sum over experts of (share of choices that went there) x (mean score), of which the first has no gradient.

    Args:
        scores: [B, S, E], of tokens that are here.
        counts: [B, E], or [1, E] for all windows together: choices of all tokens that are looked at together.
        is_token: [S] of bool: no padding.
        config: with the number of experts.
        tokens: of the whole step, on all ranks.
    """
    counts = counts.to(scores.dtype)  # torch divides whole numbers in float32
    shares = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    even = scores / scores.sum(-1, keepdim=True)
    here = (even * is_token[:, None]).sum(1)  # [B, E]
    return config.experts * (shares * here).sum() / tokens


def logit_loss(logits: Tensor, is_token: Tensor, tokens: int) -> Tensor:
    """This rank's part of the mean squared logsumexp of logits [B, S, E]: what keeps them small."""
    return (logits.logsumexp(-1).square() * is_token).sum() / tokens
