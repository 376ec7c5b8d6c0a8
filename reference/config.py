"""Everything that decides what is learned. How work is laid out over ranks is a `Plan`, and changes nothing of it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference.choices import PrecisionName
from reference.errors import BadInput
from reference.fields import option, require_64_bits
from reference.islands import IslandOptions
from reference.models import preset

if TYPE_CHECKING:
    from reference.memory.precision import Precision
    from reference.models import ModelConfig


def precision(name: str) -> "Precision":
    """What the name of a precision means."""
    from reference.memory.precision import PRECISIONS  # takes torch, which a command line does without

    return PRECISIONS[name]


@dataclass(frozen=True)
class TrainConfig(IslandOptions):
    """Everything that decides what is learned. The number of ranks is not part of it: it changes nothing.

    The number of islands does: each takes steps of its own, with its part of each batch.
    """

    model: "ModelConfig" = option(
        "demo",
        "GPT to train: tiny (33 thousand parameters), demo (0.8 million) or small (24 million); moe-tiny (52 thousand) "
        "or moe-demo (2.2 million), which have experts; or tiny-encoder (58 thousand) or demo-encoder (0.9 million), "
        "which find hidden bytes.",
        value_of=preset,
    )
    data: str | None = option(None, "A file of text (or gzip, zip, npy); Python's own documentation by default.")
    steps: int = option(300, "How many times to update the parameters.")
    stop_after: int | None = option(None, "Stop after so many of the --steps; --resume takes the others.", stored=False)
    batch: int = option(16, "Windows of text that all ranks together read in a step.")
    sequence: int = option(128, "Tokens in a window; a token is a byte.")
    learning_rate: float = option(
        3e-3, "Highest learning rate, reached after --warmup steps; then it falls to a tenth."
    )
    warmup: int = option(20, "Steps in which the learning rate rises.")
    weight_decay: float = option(0.1, "Weight decay of AdamW, as a multiple of the learning rate.")
    clip: float = option(1.0, "Longest gradient: a longer one is scaled down to this norm; inf for no limit.")
    seed: int = option(0, "Seed of the first weights, of the order of the text and of dropout.")
    precision: "Precision" = option(
        "fp32", "Numbers to compute with: {words}.", words=PrecisionName, value_of=precision
    )

    def __post_init__(self) -> None:
        require_64_bits(self)
        super().__post_init__()
        if self.steps < 1:
            raise BadInput(f"training takes at least 1 step, not {self.steps}")
        if self.stop_after is not None and not 1 <= self.stop_after <= self.steps:
            raise BadInput(f"training stops after 1 to {self.steps} steps, not {self.stop_after}")
        if self.warmup < 0:
            raise BadInput(f"a warmup takes 0 steps or more, not {self.warmup}")
        if not self.clip > 0:
            raise BadInput(f"gradients are clipped to a positive norm, not {self.clip}")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"a learning rate is a positive number, not {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise BadInput(f"a weight decay is 0 or more, and finite, not {self.weight_decay}")
        if self.seed < 0:
            raise BadInput(f"a seed is 0 or more, not {self.seed}")
        if self.model.vocabulary != 256:
            raise BadInput(f"tokens are bytes here, and this model has a vocabulary of {self.model.vocabulary:,}")
        if self.model.longest is not None and self.sequence > self.model.longest:
            raise BadInput(f"this model knows {self.model.longest} positions, and a window has {self.sequence} tokens")


def learning_rate(config: TrainConfig, step: int) -> float:
    """A cosine from the peak down to a tenth, times a line up for `warmup` steps. `step` counts from 0."""
    warmup_factor = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warmup_factor * (0.55 + 0.45 * math.cos(math.pi * step / config.steps))
