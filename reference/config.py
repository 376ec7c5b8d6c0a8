"""Everything that decides what is learned. How work is laid out over ranks is a `Plan`, and changes nothing of it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference.choices import BY_CHANCE, MOMENTUM_TRAVELS, Compress, LinearNumbers, Optimizer, PrecisionName
from reference.errors import BadInput
from reference.fields import listed, option, require_64_bits, require_members
from reference.islands import IslandOptions
from reference.models import preset
from reference.spikes import SpikeOptions

if TYPE_CHECKING:
    from reference.memory.precision import Precision
    from reference.models import ModelConfig


def precision(name: str) -> "Precision":
    """What the name of a precision means."""
    from reference.memory.precision import PRECISIONS  # takes torch, which a command line does without

    return PRECISIONS[name]


@dataclass(frozen=True)
class TrainConfig(IslandOptions, SpikeOptions):
    """Everything that decides what is learned. The number of ranks is not part of it: it changes nothing.

    The number of islands does: each takes steps of its own, with its part of each batch.
    """

    model: "ModelConfig" = option(
        "demo",
        "GPT to train: tiny (33 thousand parameters), demo (0.8 million) or small (24 million); moe-tiny (52 thousand) "
        "or moe-demo (2.2 million), which have experts; 4xdemo, four branches of demo as experts; or tiny-encoder (58 "
        "thousand) or demo-encoder (0.9 million), which find hidden bytes.",
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
    optimizer: Optimizer = option(
        Optimizer.ADAMW,
        "How to update parameters: {words}. muon, shampoo and soap look at whole matrices, adamw-8bit keeps moments "
        "in 8 bits. Lessons 06 and 15.",
    )
    weight_decay: float = option(0.1, "Weight decay, as a multiple of the learning rate.")
    clip: float = option(1.0, "Longest gradient: a longer one is scaled down to this norm; inf for no limit.")
    seed: int = option(0, "Seed of the first weights, of the order of the text and of dropout.")
    precision: "Precision" = option(
        "fp32",
        "Numbers to compute with: {words}; bf16-stochastic keeps no copy of weights in more bits.",
        words=PrecisionName,
        value_of=precision,
    )
    linear: LinearNumbers = option(
        LinearNumbers.SAME,
        "Numbers that linear layers multiply: {words}; same is as --precision, fp8-delayed takes scales from the steps "
        "before. Weights get gradients in full.",
    )
    compress: Compress = option(
        Compress.NONE, "What replicas send of gradients to sum them: {words}. What they do not send, they remember."
    )
    compress_rank: int = option(
        4, "With --compress powersgd: the rank of what is sent of a matrix.", within=("compress",)
    )
    compress_share: float = option(
        0.01, "With --compress top-k or random-k: the share of elements that is sent.", within=("compress",)
    )

    freeze_after: int | None = option(
        None,
        "With --optimizer one-bit-adam or one-bit-lamb: steps that are exact, before momenta travel in 1 bit; a fifth "
        "of all by default.",
        within=("optimizer",),
    )

    def __post_init__(self) -> None:
        require_64_bits(self)
        require_members(self)
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

        if self.precision.by_chance and self.optimizer not in BY_CHANCE:
            raise BadInput(
                f"weights of 16 bits without another copy are rounded by chance, as {listed(BY_CHANCE)} do and "
                f"{self.optimizer} does not: take one of those, or --precision bf16"
            )
        self._check_compression()
        SpikeOptions.__post_init__(self)

    def _check_compression(self) -> None:
        if self.compress_rank < 1:
            raise BadInput(f"PowerSGD sends a rank of 1 or more, not {self.compress_rank}")
        if not 0 < self.compress_share <= 1:
            raise BadInput(f"a share of elements is more than 0 and at most 1, not {self.compress_share}")
        if self.freeze_after is not None and self.freeze_after < 1:
            raise BadInput(f"a variance is learned in 1 step or more, not in {self.freeze_after}")
        if self.optimizer in MOMENTUM_TRAVELS and self.compress is not Compress.NONE:
            raise BadInput(f"{self.optimizer} has sums of its own: leave out --compress {self.compress}")
        if self.is_compressed and self.precision.scaled:
            raise BadInput(
                "the scale of the loss changes in fp16, and what is left of a gradient would be in the scale of a "
                "step before: compress in bf16 or fp32"
            )

    @property
    def is_compressed(self) -> bool:
        """Whether replicas send less than their gradients, and remember the rest."""
        return self.compress is not Compress.NONE or self.optimizer in MOMENTUM_TRAVELS

    @property
    def exact_steps(self) -> int:
        """So many steps learn the variance, before it is frozen."""
        return max(1, self.steps // 5) if self.freeze_after is None else self.freeze_after


def learning_rate(config: TrainConfig, step: int) -> float:
    """A cosine from the peak down to a tenth, times a line up for `warmup` steps. `step` counts from 0."""
    warmup_factor = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * warmup_factor * (0.55 + 0.45 * math.cos(math.pi * step / config.steps))
