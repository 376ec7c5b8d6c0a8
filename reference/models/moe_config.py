"""What a mixture of experts is made of, as numbers, without torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from reference.errors import BadInput
from reference.models.config import LAYOUT as GPT_LAYOUT
from reference.models.config import GPTConfig
from reference.models.layout import COLUMNS, ON_SLICES, ROWS, Counted, Layout, SplitDim, SplitExperts

if TYPE_CHECKING:
    from reference.models.stack import ModelConfig

LAYOUT: Layout = MappingProxyType(
    {
        "experts.gate.weight": SplitExperts(1),
        "experts.up.weight": SplitExperts(1),
        "experts.down.weight": SplitExperts(2),
        "router.weight": ON_SLICES,
        "shared.gate.weight": SplitDim(COLUMNS, Counted.FEATURES),
        "shared.up.weight": SplitDim(COLUMNS, Counted.FEATURES),
        "shared.down.weight": SplitDim(ROWS, Counted.FEATURES),
        **GPT_LAYOUT,
    }
)
"""How the parameters of a mixture of experts may be split."""


class Gate(StrEnum):
    """How a router's logits become scores."""

    SOFTMAX = "softmax"  # over all experts: one that is chosen pushes others down
    SIGMOID = "sigmoid"  # each expert by itself (DeepSeek-V3)


class Balance(StrEnum):
    """What keeps all experts busy."""

    NONE = "none"
    SWITCH = "switch"  # a loss over all tokens of a micro-batch (Fedus et al. 2021, equation 4)
    GSHARD = "gshard"  # likewise, of first choices alone (Lepikhin et al. 2020, sec. 2.2)
    SEQUENCE = "sequence"  # a loss over the tokens of each window (DeepSeek-V3, equation 17)
    BIAS = "bias"  # no loss: a bias of each expert that a step of its own moves (Wang et al. 2024)


@dataclass(frozen=True)
class MoEConfig(GPTConfig):
    """The shape of a GPT whose feed-forwards are mixtures of experts.

    Tokens that go to an expert cost what they would in a feed-forward of `expert_hidden` features, so a model has many
    more parameters than a token meets. The numbers of Mixtral, Qwen and DeepSeek are those of such layers; what else
    DeepSeek-V3 has of its own (latent attention, prediction of several tokens) is not here.

    Raises:
        BadInput: if the numbers do not fit each other.
    """

    layout: ClassVar[Layout] = LAYOUT

    experts: int = 8  # E
    top_k: int = 2  # k: experts of each token
    expert_hidden: int = 0  # F of an expert; `hidden` by default
    shared_experts: int = 0  # each token goes to these, too: together one feed-forward, so many times as wide
    dense_layers: int = 0  # the first blocks have one feed-forward, of `hidden` features
    experts_every: int = 1  # after them, every so many blocks one has experts
    gate: Gate = Gate.SOFTMAX
    normalised: bool = True  # the weights of a token's experts sum to one
    scale: float = 1.0  # of what all experts of a token make (DeepSeek-V3: 2.5)
    expert_groups: int = 1  # experts of a group lie on one node
    top_groups: int = 1  # of so many groups a token's experts are chosen, at most
    capacity: float = 0.0  # tokens of a window that an expert takes, as a multiple of an even share; 0 for any number
    balance: Balance = Balance.SWITCH  # what keeps all experts busy
    balance_rate: float = 0.01  # weight of the loss; of a bias, how far a step moves it
    z_loss: float = 0.0  # weight of the squared logsumexp of a router's logits (Zoph et al. 2022, equation 5)

    def __post_init__(self) -> None:
        if self.expert_hidden == 0:
            object.__setattr__(self, "expert_hidden", self.hidden)
        super().__post_init__()
        counts = (self.experts, self.top_k, self.expert_hidden, self.experts_every, self.expert_groups, self.top_groups)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise BadInput(f"every size of a mixture of experts is a whole number, 1 or more: {self}")
        if min(self.shared_experts, self.dense_layers) < 0 or self.dense_layers >= self.layers:
            raise BadInput(f"{self.dense_layers} of {self.layers} layers without experts, {self.shared_experts} shared")
        if self.top_k > self.experts:
            raise BadInput(f"a token goes to {self.top_k} experts, and there are {self.experts}")
        if self.normalised and self.top_k == 1:
            raise BadInput(
                "the weight of a single expert, normalised, is always 1, so no router learns: normalised=False"
            )
        if self.experts % self.expert_groups or self.top_groups > self.expert_groups:
            raise BadInput(
                f"{self.experts} experts in {self.expert_groups} groups, of which a token may use {self.top_groups}: "
                "groups are of one size, and there are enough of them"
            )
        of_group = self.experts // self.expert_groups
        if self.top_k > self.top_groups * of_group:
            raise BadInput(f"{self.top_groups} groups of {of_group} experts do not have {self.top_k} for a token")
        for name, kind in (("gate", Gate), ("balance", Balance)):
            if getattr(self, name) not in list(kind):
                raise BadInput(f"{name} is one of {', '.join(kind)}, not {getattr(self, name)}")
            object.__setattr__(self, name, kind(getattr(self, name)))  # "bias" is as good as Balance.BIAS
        rates = (self.capacity, self.balance_rate, self.z_loss)
        if not all(0 <= rate < float("inf") for rate in rates) or not self.scale > 0:
            raise BadInput(f"capacity, rates and scales are 0 or more, and finite: {self}")
        if set(self.biases) & {"gate", "up", "down"} or not self.gated:
            raise BadInput("experts are gated feed-forwards without biases")

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward of a block, counted from 0 on, is a mixture of experts."""
        return layer >= self.dense_layers and (layer - self.dense_layers + 1) % self.experts_every == 0

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Blocks with experts."""
        return tuple(layer for layer in range(self.layers) if self.has_experts(layer))

    @property
    def expert_parameters(self) -> int:
        """How many numbers an expert learns."""
        return 3 * self.width * self.expert_hidden

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return super().parameters + len(self.expert_layers) * (self._mixture(self.experts) - self._dense)

    @property
    def active_parameters(self) -> int:
        """How many of them a token meets."""
        return super().parameters + len(self.expert_layers) * (self._mixture(self.top_k) - self._dense)

    @property
    def _dense(self) -> int:
        return 3 * self.width * self.hidden

    def _mixture(self, experts: int) -> int:
        """Of a layer with so many experts, with its router and shared ones."""
        return (experts + self.shared_experts) * self.expert_parameters + self.experts * self.width


MIXTURES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "moe-tiny": {
            **{"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 96, "tied": True},
            **{"experts": 4, "top_k": 2, "expert_hidden": 48},
        },
        "moe-demo": {
            **{"layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 352, "dense_layers": 1},
            **{"experts": 8, "top_k": 2, "expert_hidden": 176, "shared_experts": 1},
        },
        # Mixtral of Experts (Jiang et al. 2024, table 1).
        "mixtral-8x7b": {
            **{"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "hidden": 14_336, "vocabulary": 32_000},
            **{"experts": 8, "top_k": 2, "rotary_base": 1_000_000.0, "balance_rate": 0.02},
        },
    }
)


def mixed_config(config: "ModelConfig", branches: int, top_k: int = 2) -> MoEConfig:
    """The configuration of a mixture of experts of so many branches.

    Raises:
        BadInput: for a model that is no GPT, or has experts already, and for feed-forwards that no expert has.
    """
    if not isinstance(config, GPTConfig) or config.experts:
        raise BadInput(f"a mixture is made of a GPT without experts, as in 4xdemo, not of {type(config).__name__}")
    if branches < 2:
        raise BadInput(f"a mixture is of 2 branches or more, not of {branches}")
    return MoEConfig(**asdict(config), experts=branches, top_k=min(top_k, branches), expert_hidden=config.hidden)
