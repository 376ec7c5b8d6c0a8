"""A GPT, and nothing about parallelism in it.

Decoder-only transformer in the manner of Llama (Touvron et al. 2023): RMSNorm before each half of a block, rotary
positions, grouped-query attention, SwiGLU. A configuration may have heads of another size, biases, or a feed-forward
without a gate.

Layers ask `self.ops` for matrix products, and for what lies between them (`reference.models.ops`). Heads are counted
from the tensors that are there, so that ranks with some of the heads run this very code. Shapes follow from the
configuration alone: everything runs on meta tensors too.

Letters in shapes: B batch, S sequence, D width, H heads, K key-value heads, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.dtypes import accumulator
from reference.models.config import GPTConfig
from reference.models.dropout import Dropout
from reference.models.objective import IGNORED
from reference.models.one_kernel import one_kernel
from reference.models.ops import Embedding, Head, Layer
from reference.models.rms_norm import rms_norm
from reference.models.stack import Stack


class RMSNorm(nn.Module):
    """Scale each token to a root mean square of one (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return rms_norm(x, self.weight, self.epsilon)


def rotary_cos_sin(positions: Tensor, head_dim: int, base: float) -> Tensor:
    """Cosine and sine of every position's angles: [S] -> [2, S, head_dim / 2], in float64.

    Pair i of a head turns by base^(-2i / head_dim) at each token (Su et al. 2021, "RoFormer", equation 15).
    """
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float64)
    angles = positions.double()[:, None] * base ** (-pairs / head_dim)
    return torch.stack([angles.cos(), angles.sin()])


@one_kernel
def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Turn the pairs of each head by its position: [B, H, S, head_dim] -> the same.

    The first half of a head holds the left partners, the second half the right ones. After it, the product of a
    query and a key depends on the distance of their tokens alone.
    """
    cos, sin = cos_sin.to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


def linear(config: GPTConfig, name: str) -> nn.Linear:
    """The linear layer of a block that the configuration calls so."""
    return nn.Linear(*config.linear[name], bias=name in config.biases)


def activation(config: GPTConfig) -> Callable[[Tensor], Tensor]:
    """The function between the matrices of a feed-forward."""
    return F.silu if config.activation == "silu" else partial(F.gelu, approximate="tanh")


class Attention(Layer):
    """Causal attention in which each head of keys and values serves several of queries (Ainslie et al. 2023)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.query, self.key, self.value = (linear(config, name) for name in ("query", "key", "value"))
        self.output = linear(config, "output")

    def forward(self, x: Tensor, cos_sin: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        mixed = self.ops.attend(self.core, *self.ops.column_linear(x, self.query, self.key, self.value), cos_sin)
        return self.ops.row_linear(mixed, self.output)

    def core(self, query: Tensor, key: Tensor, value: Tensor, cos_sin: Tensor) -> Tensor:
        """What has no weights: rotate, compare, mix. [B, S, H or K · head_dim] each -> [B, S, H · head_dim]."""
        query, key, value = self._heads(query), self._heads(key), self._heads(value)
        query, key = rotate(query, cos_sin), rotate(key, cos_sin)
        return self.ops.attention(query, key, value, causal=True).transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, S, H · head_dim] -> [B, H, S, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class SwiGLU(Layer):
    """Feed-forward with a gate: down(silu(gate(x)) · up(x)), or with gelu (Shazeer 2020)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate, self.up, self.down = (linear(config, name) for name in ("gate", "up", "down"))
        self.gated = swish_gated if config.activation == "silu" else gelu_gated

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]: `up` goes through where `gate` is open."""
        hidden = self.ops.local(self.gated, *self.ops.column_linear(x, self.gate, self.up))
        return self.ops.row_linear(hidden, self.down)


class MLP(Layer):
    """Feed-forward without a gate: down(silu(up(x))), or with gelu. What it consists of is called as in `SwiGLU`."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up, self.down = linear(config, "up"), linear(config, "down")
        self.activation = activation(config)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return self.ops.row_linear(self.ops.local(self.activation, *self.ops.column_linear(x, self.up)), self.down)


@one_kernel
def swish_gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, of any shape."""
    return F.silu(gate) * up


@one_kernel
def gelu_gated(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up, of any shape."""
    return F.gelu(gate, approximate="tanh") * up


class Block(Layer):
    """Tokens look at each other, then each thinks for itself; both add to the residual stream.

    Args:
        config: of the model.
        layer: which of its blocks this is, from 0 on: blocks drop different things.
    """

    def __init__(self, config: GPTConfig, layer: int = 0) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_epsilon)
        self.attention = Attention(config)
        self.attention_dropout = Dropout(config.dropout, site=2 * layer)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_epsilon)
        self.feed_forward = SwiGLU(config) if config.gated else MLP(config)
        self.feed_forward_dropout = Dropout(config.dropout, site=2 * layer + 1)

    def forward(self, x: Tensor, cos_sin: Tensor, *seeds: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]; with `seeds` [B, S] of int64, some of what is added is left out."""
        return self.ops.block(self.both_halves, x, cos_sin, *seeds)

    def both_halves(self, x: Tensor, cos_sin: Tensor, seeds: Tensor | None = None) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        local, dropout = self.ops.local, self.ops.dropout  # no name for what is added: it would keep it alive
        x = x + dropout(self.attention_dropout, self.attention(local(self.attention_norm, x), cos_sin), seeds)
        return x + dropout(self.feed_forward_dropout, self.feed_forward(local(self.feed_forward_norm, x)), seeds)


class TiedHead(Layer):
    """Logits by the embedding table itself (Press and Wolf 2017). A module, so that hooks on modules see it."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, V]."""
        return self.ops.logits(x, self.embedding)


class GPT(Stack):
    """Tokens in, logits of the next token out.

    Built by `reference.models.create`, which also gives it weights that depend on nothing but their names.
    """

    first, last = ("embedding",), ("norm", "head")

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        self.head = TiedHead(self.embedding) if config.tied else Head(config.width, config.vocabulary)

    def begin(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Look the tokens up: [B, S] -> [B, S, D]."""
        return self.embedding(tokens)

    def given(self, positions: Tensor) -> tuple[Tensor, ...]:
        """How far each position turns heads."""
        return (rotary_cos_sin(positions, self.config.head_dim, self.config.rotary_base),)

    def end(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return self.head(self.norm(x))


def token_loss(logits: Tensor, targets: Tensor, global_tokens: int) -> Tensor:
    """This rank's part of the loss: the sum over its tokens, divided by the number of tokens of *all* ranks.

    Parts of all ranks, micro-batches or sequence shards then simply add up to the loss of the whole batch, and so do
    their gradients: gradients are always summed, never averaged.

    Args:
        logits: [B, S, V].
        targets: [B, S], the token that follows each; `IGNORED` for one that does not count.
        global_tokens: how many tokens the whole step sees.

    Returns:
        A scalar, in nats.
    """
    logits = logits.to(accumulator(logits.dtype))  # eight bits of mantissa are too few for a sum of exponentials
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return losses / global_tokens
