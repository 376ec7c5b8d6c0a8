"""Models that the engines were not written for, and what one process makes of them.

Each is made in float64 from a seed of its own, and gives a loss of one micro-batch that is its part of a whole batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCABULARY = 13


class Encoder(nn.Module):
    """torch's own encoder between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


class Convolutional(nn.Module):
    """Convolutions, batch norms with their running statistics, and a buffer that scales the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))
        self.body = nn.Sequential(*(self.block(a, b) for a, b in ((2, 3), (3, 4))))
        self.head = nn.Linear(4, 3)

    @staticmethod
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images * self.scale).mean((2, 3)))


class Tangled(nn.Module):
    """Tied embedding and head, a frozen block, a block that is not used, one that is used twice, and no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.blocks[1].requires_grad_(False)
        self.head = nn.Linear(6, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in (self.blocks[0], self.blocks[1], self.blocks[0], self.blocks[3]):  # and not 2
            x = x + torch.tanh(block(x))
        return self.head(x) + self.nothing.sum()


class Recomputing(Encoder):
    """An encoder whose layers are computed again in backward."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.encoder.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.encoder.norm(x))


def llama() -> nn.Module:
    """Three blocks of `transformers`' Llama."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """Two blocks of `transformers`' GPT-2, whose head is tied to the embedding."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=8,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def recomputing_llama() -> nn.Module:
    """With `transformers`' own checkpoints around each block."""
    model = llama()
    model.gradient_checkpointing_enable()
    return model


def tokens(step: int, part: int, parts: int) -> Tensor:
    """Of one micro-batch of a step, [B, S]."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY, (12, 6), generator=generator).tensor_split(parts)[part]


def of_tokens(model: nn.Module, step: int, part: int, parts: int) -> Tensor:
    """Cross entropy with the next tokens, as a part of the mean over the whole batch."""
    x = tokens(step, part, parts)
    y = model(x)
    logits = y if isinstance(y, Tensor) else y.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), reduction="sum") / 60


def of_images(model: nn.Module, step: int, part: int, parts: int) -> Tensor:
    """Cross entropy with labels."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 2, 4, 4, dtype=torch.float64, generator=generator).tensor_split(parts)[part]
    labels = torch.randint(3, (8,), generator=generator).tensor_split(parts)[part]
    return F.cross_entropy(model(images), labels, reduction="sum") / 8


@dataclass(frozen=True)
class Own:
    """A model and its loss; whether some parameters are not used."""

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, int, int], Tensor] = of_tokens
    unused: bool = False

    def model(self) -> nn.Module:
        """The same in every process, in float64."""
        torch.manual_seed(0)
        return self.make().double().train()


MODELS: Mapping[str, Own] = MappingProxyType(
    {
        "nn.TransformerEncoder": Own(Encoder),
        "convolutions and batch norm": Own(Convolutional, of_images),
        "tied, frozen, unused, used twice": Own(Tangled, unused=True),
        "Llama": Own(llama),
        "GPT-2": Own(gpt2),
        "nn.TransformerEncoder, recomputed": Own(Recomputing),
        "Llama, recomputed": Own(recomputing_llama),
    }
)
