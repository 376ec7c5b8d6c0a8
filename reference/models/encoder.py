"""A bidirectional encoder that finds hidden tokens, in the manner of BERT (Devlin et al. 2019).

What differs from the GPT differs on purpose: tokens look both ways, norms subtract the mean and have biases (Ba et al.
2016), as most linear layers of a block have; positions are learned; the feed-forward has no gate. As in later encoders,
norms stand before each half of a block (Xiong et al. 2020). Strategies know nothing of all this: they see a `Stack`.

Letters in shapes: B batch, S sequence, D width, H heads, F features of the feed-forward, V vocabulary.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models.dropout import Dropout
from reference.models.layout import COLUMNS, ROWS, WHOLE, Counted, Layout, SplitDim
from reference.models.objective import MaskedTokens, Objective
from reference.models.ops import Embedding, Head, Layer
from reference.models.stack import Stack

LAYOUT: Layout = MappingProxyType(
    {
        "embedding.weight": SplitDim(0, Counted.TOKENS),
        "positions.weight": WHOLE,
        "attention.query.weight": SplitDim(COLUMNS, Counted.HEADS),
        "attention.key.weight": SplitDim(COLUMNS, Counted.HEADS),
        "attention.value.weight": SplitDim(COLUMNS, Counted.HEADS),
        "attention.output.weight": SplitDim(ROWS, Counted.HEADS),
        "feed_forward.up.weight": SplitDim(COLUMNS, Counted.FEATURES),
        "feed_forward.down.weight": SplitDim(ROWS, Counted.FEATURES),
        "norm.weight": WHOLE,
        "head.weight": SplitDim(COLUMNS, Counted.TOKENS),
    }
)
"""How the parameters of an encoder may be split."""


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder.

    Raises:
        BadInput: if the numbers do not fit each other.
    """

    layout: ClassVar[Layout] = LAYOUT
    objective: ClassVar[Objective] = MaskedTokens()
    tied: ClassVar[bool] = False
    experts: ClassVar[int] = 0  # of a layer: one feed-forward, and no choice

    layers: int  # L
    width: int  # D
    heads: int  # H, of queries, keys and values alike
    hidden: int  # F
    vocabulary: int = 256  # V
    longest: int = 512  # tokens in a window, at most: each position is learned
    norm_epsilon: float = 1e-5
    dropout: float = 0.0  # share of what a block adds to the residual stream that training leaves out

    def __post_init__(self) -> None:
        counts = (self.layers, self.width, self.heads, self.hidden, self.vocabulary, self.longest)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise BadInput(f"every size of a model is a whole number, 1 or more: {self}")
        if self.width % self.heads:
            raise BadInput(f"width {self.width} must be a multiple of heads {self.heads}")
        if not self.norm_epsilon >= 0:
            raise BadInput(f"norm_epsilon is 0 or more, not {self.norm_epsilon}")
        if not 0 <= self.dropout < 1:
            raise BadInput(f"dropout is a share from 0 to below 1, not {self.dropout}")

    @property
    def kv_heads(self) -> int:
        """Each head of queries has keys and values of its own."""
        return self.heads

    @property
    def block_parameters(self) -> int:
        """How many numbers a block learns: four matrices D x D, two D x F, biases of all but keys, two norms."""
        matrices = 4 * self.width**2 + 2 * self.width * self.hidden
        return matrices + 4 * self.width + self.hidden + 4 * self.width

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        ends = (2 * self.vocabulary + self.longest + 2) * self.width
        return self.layers * self.block_parameters + ends


class SelfAttention(Layer):
    """Attention in which each token looks at all others.

    Keys have no bias: it would add the same to all scores of a query, so its gradient is zero, and Adam would blow
    rounding up (as in Whisper, Radford et al. 2022).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.query, self.value, self.output = (nn.Linear(config.width, config.width) for _ in range(3))
        self.key = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        mixed = self.ops.attend(self.core, *self.ops.column_linear(x, self.query, self.key, self.value))
        return self.ops.row_linear(mixed, self.output)

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What has no weights: compare, mix. [B, S, H · head_dim] each -> the same."""
        heads = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in (query, key, value))
        return self.ops.attention(*heads, causal=False).transpose(1, 2).flatten(2)


class FeedForward(Layer):
    """down(gelu(up(x)))."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return self.ops.row_linear(self.ops.local(F.gelu, *self.ops.column_linear(x, self.up)), self.down)


class EncoderBlock(Layer):
    """Tokens look at each other, then each thinks for itself.

    Args:
        config: of the model.
        layer: which of its blocks this is, from 0 on: blocks drop different things.
    """

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.attention = SelfAttention(config)
        self.attention_dropout = Dropout(config.dropout, site=2 * layer)
        self.feed_forward_norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.feed_forward_dropout = Dropout(config.dropout, site=2 * layer + 1)

    def forward(self, x: Tensor, *seeds: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]; with `seeds` [B, S] of int64, some of what is added is left out."""
        return self.ops.block(self.both_halves, x, *seeds)

    def both_halves(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        local, dropout = self.ops.local, self.ops.dropout  # no name for what is added: it would keep it alive
        x = x + dropout(self.attention_dropout, self.attention(local(self.attention_norm, x)), seeds)
        return x + dropout(self.feed_forward_dropout, self.feed_forward(local(self.feed_forward_norm, x)), seeds)


class Encoder(Stack):
    """Tokens in, of which some are hidden; logits of what stands at each place out."""

    first, last = ("embedding", "positions"), ("norm", "head")

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.longest, config.width)
        self.blocks = nn.ModuleList(EncoderBlock(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, config.norm_epsilon)
        self.head = Head(config.width, config.vocabulary)

    def begin(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Look tokens and positions up: [B, S] and [S] -> [B, S, D].

        Raises:
            BadInput: if a window is longer than the table of positions.
        """
        if len(positions) > self.config.longest:
            raise BadInput(
                f"this model knows {self.config.longest} positions, and a window has {len(positions)} tokens"
            )
        return self.embedding(tokens) + self.ops.local_tokens(self.positions(positions.clamp(min=0))[None])

    def given(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Nothing: the residual stream knows where it is."""
        return ()

    def end(self, x: Tensor) -> Tensor:
        """[B, S, D] -> logits [B, S, V]."""
        return self.head(self.norm(x))
