"""Everything that decides what is learned. How work is laid out over ranks is a `Plan`, and changes nothing of it."""

import math
from dataclasses import dataclass

from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision
from reference.models import PRESETS, ModelConfig


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what is learned. The number of ranks is not part of it: it changes nothing."""

    model: ModelConfig = PRESETS["demo"]
    data: str | None = None  # a file of text; Python's own documentation by default
    steps: int = 300
    stop_after: int | None = None  # take only the first steps of those planned, 1 or more
    batch: int = 16  # windows in a step, of all ranks together
    sequence: int = 128  # tokens in a window
    learning_rate: float = 3e-3  # at its peak
    warmup: int = 20  # steps until the peak
    weight_decay: float = 0.1
    clip: float = 1.0  # a longer gradient is scaled down to this norm
    seed: int = 0
    precision: Precision = PRECISIONS["fp32"]

    def __post_init__(self) -> None:
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
        if self.seed < 0:
            raise BadInput(f"a seed is 0 or more, not {self.seed}")
        if self.model.vocabulary != 256:
            raise BadInput(f"tokens are bytes here, and this model has a vocabulary of {self.model.vocabulary:,}")


def learning_rate(config: TrainConfig, step: int) -> float:
    """A cosine from the peak down to a tenth, times a line up for `warmup` steps. `step` counts from 0."""
    warmup_factor = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warmup_factor * (0.55 + 0.45 * math.cos(math.pi * step / config.steps))
