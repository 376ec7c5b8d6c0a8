"""What a GPT is made of, as numbers: everything about a model that one can know without building it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reference.errors import BadInput


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT in the manner of Llama (Touvron et al. 2023).

    Raises:
        BadInput: if the numbers do not fit each other.
    """

    layers: int  # L
    width: int  # D, of the residual stream
    heads: int  # H, of queries
    kv_heads: int  # K, of keys and values; each serves heads / kv_heads heads of queries
    hidden: int  # F, inside the SwiGLU
    vocabulary: int = 256  # V; 256 when a token is a byte
    tied: bool = False  # the output projection is the embedding table
    rotary_base: float = 10_000.0  # the slowest wave is 2 pi x base^(1 - 2 / head_dim) tokens long
    norm_epsilon: float = 1e-5
    dropout: float = 0.0  # share of what a block adds to the residual stream that training leaves out

    def __post_init__(self) -> None:
        counts = (self.layers, self.width, self.heads, self.kv_heads, self.hidden, self.vocabulary)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise BadInput(f"every size of a model is a whole number, 1 or more: {self}")
        if self.width % (2 * self.heads):
            raise BadInput(f"width {self.width} must be an even multiple of heads {self.heads}: rotary turns pairs")
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
        return self.width // self.heads

    @property
    def block_parameters(self) -> int:
        """How many numbers a block learns."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        feed_forward = 3 * self.width * self.hidden
        norms = 2 * self.width
        return attention + feed_forward + norms

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
    }
)


def preset(name: str) -> GPTConfig:
    """The configuration called `name`.

    Raises:
        BadInput: if there is none.
    """
    if name not in PRESETS:
        raise BadInput(f"no model is called {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
