"""A GPT whose feed-forwards are mixtures of experts, and nothing about parallelism in it.

A router scores all experts for each token; the best k of them compute; what they make is weighed and added. So a model
has E / k times the parameters that a token meets, for the same number of multiplications.

    routed      tokens of this rank choose; how many chose whom is known of all ranks
    dispatch    rows go to their experts, in the order of the experts, and what these make comes back
    shared      experts that each token goes to: a feed-forward as in any other block

Letters in shapes: B batch, S sequence, D width, E experts, k experts of a token, F features of one.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from reference.dtypes import accumulator, autocasts
from reference.models.config import GPTConfig
from reference.models.gpt import GPT, Block, SwiGLU, rotary_cos_sin, swish_gated
from reference.models.grouped import grouped
from reference.models.moe_config import Balance, MoEConfig
from reference.models.ops import Layer, Made
from reference.models.routing import (
    NOWHERE,
    balance_loss,
    choose,
    counts_of,
    fits,
    logit_loss,
    scores_of,
    weigh,
)


@dataclass
class Load:
    """What one layer's router has seen in a step, and what its next choices depend on.

    Attributes:
        bias: [E], added to scores to choose with; None for no bias.
        tokens: of the whole step on all ranks: what auxiliary losses are divided by.
        scale: of the loss, where it is scaled for fp16.
        counts: [E] of int64, choices of tokens that were routed here; None before the first.
        dropped: how many of them did not fit.
        loss: auxiliary, this rank's part.
    """

    bias: Tensor | None = None
    tokens: int = 1
    scale: float = 1.0
    counts: Tensor | None = None
    dropped: Tensor | int = 0
    loss: Tensor | float = 0.0

    def begin_step(self, tokens: int, scale: float = 1.0) -> None:
        """Forget what the last step has seen; the bias stays."""
        self.tokens, self.scale, self.counts, self.dropped, self.loss = tokens, scale, None, 0, 0.0

    def add(self, counts: Tensor, dropped: Tensor) -> None:
        """Count more choices."""
        self.counts = counts if self.counts is None else self.counts + counts
        self.dropped = self.dropped + dropped


class Matrices(nn.Module):
    """A matrix of each expert: [E, out, in]."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))


class Experts(nn.Module):
    """Some of the experts of a layer: each a SwiGLU."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.expert_hidden
        self.gate, self.up = (Matrices(config.experts, width, hidden) for _ in range(2))
        self.down = Matrices(config.experts, hidden, width)

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """[N, D] -> [N, D]: the first counts[0] rows are for the first expert, and so on."""
        hidden = swish_gated(grouped(rows, self.gate.weight, counts), grouped(rows, self.up.weight, counts))
        return grouped(hidden, self.down.weight, counts)


class Router(nn.Module):
    """Scores of all experts for a token."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.experts, config.width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, E], with no fewer bits than float32: close scores decide where a token goes."""
        dtype = accumulator(x.dtype)
        with torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext():
            return F.linear(x.to(dtype), self.weight.to(dtype))


class MixtureOfExperts(Layer):
    """A feed-forward of which each token meets a part."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config, self.load = config, Load()
        self.choose, self.weigh, self.balance_loss = choose, weigh, balance_loss  # or others, from the same arguments
        self.router, self.experts = Router(config), Experts(config)
        self.shared = SwiGLU(wide(config)) if config.shared_experts else None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, S, D] and [S] -> [B, S, D]. Positions below 0 are no tokens."""
        finish = self.ops.start_routed(self.start, x, positions)
        if self.shared is None:
            return finish()
        shared = self.shared(x)  # while tokens travel
        return finish() + shared

    def start(self, x: Tensor, positions: Tensor) -> Made:
        """Route [B, S, D], and begin to send it to the experts; the result has what they make of it."""
        logits, is_token = self.router(x), positions >= 0
        scores = scores_of(logits, self.config)
        experts, counts = self.ops.decide(self.decide, scores.detach(), positions)
        weights = self.weigh(scores, experts.clamp(min=0), self.config) * (experts != NOWHERE)
        finish = self.ops.start_experts(self.experts, x, experts, weights.to(x.dtype), self.config.experts)
        return lambda: self._with_losses(finish(), logits, scores, counts, is_token)

    def decide(self, scores: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Which experts tokens go to, [B, S, k], and what balance is measured by: [B or 1, E].

        What depends on this is computed again in backward, where recomputation is on; this is not. It has no gradient,
        counts what it has seen, and a choice between close scores might come out otherwise the second time.
        """
        config, is_token = self.config, positions >= 0
        wanted = self.choose(scores, config, self.load.bias)
        wanted = wanted.masked_fill(~is_token[:, None], NOWHERE)
        experts = wanted
        if config.capacity:
            whole, own = self.ops.whole_windows(wanted, positions)
            experts = wanted.masked_fill(~own(fits(whole, config)), NOWHERE)
        counted = wanted[..., :1] if config.balance is Balance.GSHARD else wanted
        counts = counts_of(counted, config.experts)
        if config.balance in (Balance.SWITCH, Balance.GSHARD):
            counts = self.ops.sum_over_batch(counts.sum(0, keepdim=True))
        elif config.balance is Balance.SEQUENCE:
            counts = self.ops.sum_over_windows(counts)
        self.load.add(counts_of(wanted, config.experts).sum(0), (wanted != experts).sum())
        return experts, counts

    def _with_losses(self, x: Tensor, logits: Tensor, scores: Tensor, counts: Tensor, is_token: Tensor) -> Tensor:
        """What the experts made; backward from it begins with the auxiliary losses, too."""
        config, load, losses = self.config, self.load, []
        if config.balance not in (Balance.NONE, Balance.BIAS):
            losses.append(config.balance_rate * self.balance_loss(scores, counts, is_token, config, load.tokens))
        if config.z_loss:
            losses.append(config.z_loss * logit_loss(logits, is_token, load.tokens))
        return WithLoss.apply(x, sum(losses), load) if losses else x


class WithLoss(Function):
    """`apply(x, loss, load)` is `x`, and the gradient of the loss begins where that of `x` comes by.

    So a loss of a layer needs no way to the end of the model, which may be on another rank. It is counted when that
    happens: once, however often forward runs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, load: Load) -> Tensor:
        ctx.load, ctx.loss = load, loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.load.loss = ctx.load.loss + ctx.loss
        return gradient, ctx.loss.new_tensor(ctx.load.scale), None


class MoEBlock(Block):
    """A block whose feed-forward may be a mixture of experts."""

    def __init__(self, config: MoEConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.is_mixture = config.has_experts(layer)
        if self.is_mixture:
            self.feed_forward = MixtureOfExperts(config)

    def forward(self, x: Tensor, cos_sin: Tensor, positions: Tensor, *seeds: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D], as `Block`; positions [S] below 0 are no tokens."""
        return self.ops.block(self.with_experts, x, cos_sin, positions, *seeds)

    def with_experts(self, x: Tensor, cos_sin: Tensor, positions: Tensor, seeds: Tensor | None = None) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        think = partial(self.feed_forward, positions=positions) if self.is_mixture else self.feed_forward
        local, dropout = self.ops.local, self.ops.dropout
        x = x + dropout(self.attention_dropout, self.attention(local(self.attention_norm, x), cos_sin), seeds)
        return x + dropout(self.feed_forward_dropout, think(local(self.feed_forward_norm, x)), seeds)


class MoE(GPT):
    """A GPT with experts."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(MoEBlock(config, layer) for layer in range(config.layers))

    def given(self, positions: Tensor) -> tuple[Tensor, ...]:
        """How far each position turns heads, and which are tokens at all."""
        return rotary_cos_sin(positions, self.config.head_dim, self.config.rotary_base), positions


def wide(config: MoEConfig) -> GPTConfig:
    """Of the shared experts of a layer, which are one feed-forward."""
    sizes = {"head_size": config.head_size, "hidden": config.shared_experts * config.expert_hidden}
    return GPTConfig(config.layers, config.width, config.heads, config.kv_heads, **sizes, activation=config.activation)


def mixtures_in(model: nn.Module) -> dict[int, MixtureOfExperts]:
    """The layers with experts that a model, or some of its stages, has: by the number of the block."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            found[int(name.split("blocks.")[1].split(".")[0])] = module
    return found
