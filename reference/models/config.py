"""What a GPT is made of, as numbers: everything about a model that one can know without building it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from reference.errors import BadInput
from reference.fields import option
from reference.models.layout import COLUMNS, ROWS, WHOLE, Counted, Layout, SplitDim
from reference.models.objective import NextToken, Objective

if TYPE_CHECKING:
    from reference.models.stack import ModelConfig

ACTIVATIONS = ("silu", "gelu")
LINEAR = ("query", "key", "value", "output", "gate", "up", "down")
"""The linear layers of a block; one without a gate has no "gate"."""
QKV = LINEAR[:3]

LAYOUT: Layout = MappingProxyType(
    {
        "embedding.weight": SplitDim(0, Counted.TOKENS),
        "attention.query.weight": SplitDim(COLUMNS, Counted.HEADS),
        "attention.key.weight": SplitDim(COLUMNS, Counted.KV_HEADS),
        "attention.value.weight": SplitDim(COLUMNS, Counted.KV_HEADS),
        "attention.output.weight": SplitDim(ROWS, Counted.HEADS),
        "feed_forward.gate.weight": SplitDim(COLUMNS, Counted.FEATURES),
        "feed_forward.up.weight": SplitDim(COLUMNS, Counted.FEATURES),
        "feed_forward.down.weight": SplitDim(ROWS, Counted.FEATURES),
        "norm.weight": WHOLE,
        "head.weight": SplitDim(COLUMNS, Counted.TOKENS),
    }
)
"""How the parameters of a GPT may be split."""


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT in the manner of Llama (Touvron et al. 2023).

    Heads may be wider or narrower together than the residual stream (Gemma, Mistral Nemo), linear layers may have
    biases (Qwen2), and the feed-forward may do without a gate. What else such models have of their own (Gemma's norm
    counts from one and its embedding is scaled) changes no count, and is not here.

    Raises:
        BadInput: if the numbers do not fit each other.
    """

    layout: ClassVar[Layout] = LAYOUT
    objective: ClassVar[Objective] = NextToken()
    longest: ClassVar[None] = None  # rotary knows any position

    layers: int  # L
    width: int  # D, of the residual stream
    heads: int  # H, of queries
    kv_heads: int  # K, of keys and values; each serves heads / kv_heads heads of queries
    hidden: int  # F, inside the feed-forward
    vocabulary: int = 256  # V; 256 when a token is a byte
    tied: bool = False  # the output projection is the embedding table
    rotary_base: float = 10_000.0  # the slowest wave is 2 pi x base^(1 - 2 / head_dim) tokens long
    norm_epsilon: float = 1e-5
    dropout: float = option(
        0.0, "Share of what a block adds to the residual stream that each step sets to 0 at random."
    )
    head_size: int | None = None  # numbers of one head; width / heads if nothing is said
    biases: tuple[str, ...] = ()  # which of a block's linear layers have one, by name: see `LINEAR`
    gated: bool = True  # False: the feed-forward is down(activation(up(x))), two matrices instead of three
    activation: str = "silu"  # or "gelu", its approximation by tanh
    experts: ClassVar[int] = 0  # of a layer: one feed-forward, and no choice

    def __post_init__(self) -> None:
        counts = (self.layers, self.width, self.heads, self.kv_heads, self.hidden, self.vocabulary)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise BadInput(f"every size of a model is a whole number, 1 or more: {self}")
        if self.head_size is None and self.width % (2 * self.heads):
            raise BadInput(f"width {self.width} must be an even multiple of heads {self.heads}: rotary turns pairs")
        if self.head_size is not None and not (isinstance(self.head_size, int) and self.head_size >= 2):
            raise BadInput(f"head_size is a whole number, 2 or more, not {self.head_size}")
        if self.head_dim % 2:
            raise BadInput(f"head_size {self.head_size} must be even: rotary turns pairs")
        if unknown := [name for name in self.biases if name not in self.linear]:
            raise BadInput(f"no linear layer of a block is called {unknown[0]!r}; there are {', '.join(self.linear)}")
        if len(set(self.biases)) != len(self.biases):
            raise BadInput(f"a linear layer has one bias: {', '.join(self.biases)}")
        if self.activation not in ACTIVATIONS:
            raise BadInput(f"activation is one of {', '.join(ACTIVATIONS)}, not {self.activation}")
        if self.heads % self.kv_heads:
            raise BadInput(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if not self.rotary_base > 0:
            raise BadInput(f"rotary_base is above 0, not {self.rotary_base}")
        if not self.norm_epsilon >= 0:
            raise BadInput(f"norm_epsilon is 0 or more, not {self.norm_epsilon}")
        if not 0 <= self.dropout < 1:
            raise BadInput(f"dropout is a share from 0 to below 1, not {self.dropout}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads if self.head_size is None else self.head_size

    @property
    def attended(self) -> int:
        """Width of all heads of queries together: of what attention makes."""
        return self.heads * self.head_dim

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each linear layer of a block, by its name."""
        keys = self.kv_heads * self.head_dim
        into = ("gate", "up") if self.gated else ("up",)
        return {
            "query": (self.width, self.attended),
            "key": (self.width, keys),
            "value": (self.width, keys),
            "output": (self.attended, self.width),
            **dict.fromkeys(into, (self.width, self.hidden)),
            "down": (self.hidden, self.width),
        }

    @property
    def block_parameters(self) -> int:
        """How many numbers a block learns."""
        weights = sum(inputs * outputs for inputs, outputs in self.linear.values())
        biases = sum(self.linear[name][1] for name in self.biases)
        return weights + biases + 2 * self.width

    @property
    def unsplit_parameters(self) -> int:
        """How many numbers of a block tensor-parallel ranks all have: its norms, and biases that are added to a sum."""
        return (2 + sum(name in self.biases for name in ("output", "down"))) * self.width

    @property
    def kv_head_parameters(self) -> int:
        """How many numbers of a block belong to one head of keys and values."""
        return self.head_dim * sum(self.width + (name in self.biases) for name in ("key", "value"))

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        tables = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * self.block_parameters + self.width + tables


PRESETS: Mapping[str, GPTConfig] = MappingProxyType(
    {
        # One byte is one token: these train on a laptop.
        "tiny": GPTConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=96, tied=True),
        "demo": GPTConfig(layers=4, width=128, heads=4, kv_heads=2, hidden=352),
        "small": GPTConfig(layers=8, width=512, heads=8, kv_heads=4, hidden=1408),
        # Llama 3 (Grattafiori et al. 2024, table 3): for plans, and for meta tensors.
        "llama3-8b": GPTConfig(32, 4096, 32, 8, 14_336, vocabulary=128_256, rotary_base=500_000.0),
        "llama3-70b": GPTConfig(80, 8192, 64, 8, 28_672, vocabulary=128_256, rotary_base=500_000.0),
        "llama3-405b": GPTConfig(126, 16_384, 128, 8, 53_248, vocabulary=128_256, rotary_base=500_000.0),
        # Gemma (Mesnard et al. 2024, table 1), Mistral Nemo (2024, params.json), Qwen2 (Yang et al. 2024, table 1).
        "gemma-2b": GPTConfig(18, 2048, 8, 1, 16_384, 256_000, tied=True, head_size=256, activation="gelu"),
        "gemma-7b": GPTConfig(28, 3072, 16, 16, 24_576, 256_000, tied=True, head_size=256, activation="gelu"),
        "mistral-nemo-12b": GPTConfig(40, 5120, 32, 8, 14_336, 131_072, rotary_base=1_000_000.0, head_size=128),
        "qwen2-0.5b": GPTConfig(24, 896, 14, 2, 4864, 151_936, tied=True, rotary_base=1_000_000.0, biases=QKV),
        "qwen2-7b": GPTConfig(28, 3584, 28, 4, 18_944, 152_064, rotary_base=1_000_000.0, biases=QKV),
        "qwen2-72b": GPTConfig(80, 8192, 64, 8, 29_568, 152_064, rotary_base=1_000_000.0, biases=QKV),
    }
)


ENCODERS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "tiny-encoder": {"layers": 2, "width": 32, "heads": 4, "hidden": 128},
        "demo-encoder": {"layers": 4, "width": 128, "heads": 4, "hidden": 512},
    }
)
"""Sizes of encoders that read bytes, as `reference.models.encoder` takes them."""


def preset(name: str) -> "ModelConfig":
    """The configuration called `name`; `4xdemo` is a mixture of four experts, each with the feed-forwards of `demo`.

    Raises:
        BadInput: if there is none.
    """
    if name in PRESETS:
        return PRESETS[name]
    from reference.models.moe_config import MIXTURES, MoEConfig, mixed_config

    if of_branches := re.fullmatch(r"(\d+)x(.+)", name):
        return mixed_config(preset(of_branches[2]), int(of_branches[1]))
    if name in MIXTURES:
        return MoEConfig(**MIXTURES[name])
    if name not in ENCODERS:
        raise BadInput(f"no model is called {name!r}; there are {', '.join([*PRESETS, *MIXTURES, *ENCODERS])}")
    from reference.models.encoder import EncoderConfig  # takes torch, which a command line does without

    return EncoderConfig(**ENCODERS[name])


def require_gpt(config: "ModelConfig") -> None:
    """See that a formula is asked about a model whose layers it knows.

    Raises:
        BadInput: for any other than a GPT, and for one with experts.
    """
    if not isinstance(config, GPTConfig) or config.experts:
        raise BadInput(f"this formula counts what a GPT has (GPTConfig), and not a model of {type(config).__name__}")
