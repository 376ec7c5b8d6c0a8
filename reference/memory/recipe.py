"""What training keeps for each parameter, from one step to the next: 16 bytes with Adam, in fp32 as in mixed precision.

    state_bytes(7_500_000_000, RECIPES["mixed Adam"], Stage.ZERO1, ranks=64).total   # 31.4e9, where DDP takes 120e9

| stage  | bytes of a rank, K = 12 of optimizer state | n -> infinity | shards also   |
|--------|--------------------------------------------|---------------|---------------|
| DDP    | (2 + 2 + K) P                              | 16 P          | nothing       |
| ZeRO-1 | (2 + 2) P + K P / n                        | 4 P           | the optimizer |
| ZeRO-2 | 2 P + (2 + K) P / n                        | 2 P           | gradients     |
| ZeRO-3 | (2 + 2 + K) P / n                          | 0             | parameters    |

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", figure 1 and table 1,
for mixed-precision Adam and P parameters on n ranks. What a step needs meanwhile comes on top: activations, and what
ZeRO-3 gathers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from reference.errors import BadInput


class Stage(StrEnum):
    """How much of the training state data-parallel ranks share out among each other."""

    DDP = "ddp"  # nothing: every rank holds all of it
    ZERO1 = "zero1"  # optimizer state
    ZERO2 = "zero2"  # gradients, too
    ZERO3 = "zero3"  # parameters, too: what FSDP does


@dataclass(frozen=True)
class Recipe:
    """Bytes for each parameter, by what they are for."""

    parameters: float  # the model's own
    gradients: float
    master: float  # copy that the optimizer updates; 0 if it updates the model's own
    moments: float  # what the optimizer remembers
    source: str
    compute: float = 0.0  # of a parameter as the model computes with it, and as ZeRO-3 gathers it; `parameters` if 0

    @property
    def optimizer(self) -> float:
        """Bytes of optimizer state: the master copy and the moments. K in the ZeRO paper."""
        return self.master + self.moments

    @property
    def total(self) -> float:
        """Bytes of everything."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def gathered(self) -> float:
        """Bytes of a parameter as ZeRO-3 gathers it."""
        return self.compute or self.parameters


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "fp32 Adam": Recipe(4, 4, 0, 8, "Kingma and Ba 2015"),
        "mixed Adam": Recipe(2, 2, 4, 8, "Micikevicius et al. 2018; Rajbhandari et al. 2020 (ZeRO), section 3.1"),
        "mixed Adam, fp32 gradients": Recipe(2, 4, 4, 8, "Megatron-LM, distributed optimizer: 18 bytes, 6 + 12/d"),
        "mixed Adam, both gradients": Recipe(
            2, 6, 4, 8, "Megatron-LM, fp16 gradients beside fp32 ones; 20 bytes, unsharded"
        ),
        "fp32 Adam, bf16 compute": Recipe(4, 4, 0, 8, "Zhao et al. 2023 (FSDP), section 4.4", compute=2),
        "pure bf16 Adam": Recipe(2, 2, 0, 4, "Zamirai et al. 2020, Revisiting BFloat16 Training: updates get lost"),
        "fp8 Adam": Recipe(1, 4, 4, 4, "DeepSeek-V3 (2024), section 3.3: fp32 master and gradients, bf16 moments"),
        "mixed Adam, 8-bit moments": Recipe(2, 2, 4, 2 + 2 * 4 / 2048, "Dettmers et al. 2021, a scale per 2048 values"),
        "fp32 SGD": Recipe(4, 4, 0, 0, "Robbins and Monro 1951"),
        "fp32 SGD with momentum": Recipe(4, 4, 0, 4, "Polyak 1964"),
        "fp32 Adafactor": Recipe(4, 4, 0, 0, "Shazeer and Stern 2018: a sum for each row and column of a matrix, ~0"),
        "mixed Lion": Recipe(2, 2, 4, 4, "Chen et al. 2023: momentum alone"),
        "mixed Muon": Recipe(2, 2, 4, 4, "Jordan et al. 2024: momentum alone; for matrices, beside Adam for the rest"),
        "frozen bf16": Recipe(2, 0, 0, 0, "inference, and what stands under LoRA: Hu et al. 2021"),
        "frozen 4-bit": Recipe(0.5 + 1 / 64 + 4 / 64 / 256, 0, 0, 0, "QLoRA: Dettmers et al. 2023, two scales"),
    }
)
"""What people train with. Adapters of LoRA have a recipe of their own, which adds up with that of what is frozen."""


@dataclass(frozen=True)
class Breakdown:
    """Bytes that one rank keeps from step to step."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: "Breakdown") -> "Breakdown":
        return Breakdown(
            self.parameters + other.parameters, self.gradients + other.gradients, self.optimizer + other.optimizer
        )


def shard(elements: int, ranks: int) -> int:
    """Elements of one rank's shard. All ranks hold equally many, so up to n-1 of them stand for nothing.

    Each tensor that is cut on its own pads on its own: FSDP with u units keeps at most u (n-1) elements too many.
    """
    return -(-elements // ranks)


def state_bytes(parameters: int, recipe: Recipe, stage: Stage, ranks: int) -> Breakdown:
    """What each rank keeps of a training state. For several units, or a part that is frozen, add up what each takes.

    Args:
        parameters: how many numbers are learned; they are cut into shards as one flat tensor.
        recipe: bytes for each.
        stage: what is shared out.
        ranks: n, among which it is.

    Returns:
        Bytes, padding included, each rounded up to whole bytes.

    Raises:
        BadInput: if there are no ranks, fewer parameters than none, or no stage is called so.
    """
    stage = _stage(stage)
    if parameters < 0:
        raise BadInput(f"a model has at least 0 parameters, not {parameters}")
    if ranks < 1:
        raise BadInput(f"a training state is shared among at least 1 rank, not {ranks}")
    mine = shard(parameters, ranks)
    return Breakdown(
        parameters=_bytes(mine if stage is Stage.ZERO3 else parameters, recipe.parameters),
        gradients=_bytes(mine if stage in (Stage.ZERO2, Stage.ZERO3) else parameters, recipe.gradients),
        optimizer=_bytes(parameters if stage is Stage.DDP else mine, recipe.optimizer),
    )


def fits(memory: int, parameters: int, recipe: Recipe, stage: Stage, ranks: int, besides: int = 0) -> bool:
    """Whether a training state goes into `memory` bytes on each rank, with `besides` bytes of everything else."""
    return state_bytes(parameters, recipe, stage, ranks).total + besides <= memory


def largest_model(memory: int, recipe: Recipe, stage: Stage, ranks: int, besides: int = 0) -> int:
    """The most parameters whose training state fits; 0 if not even one does. Arguments as for `fits`."""
    low, high = 0, 1  # fits, does not fit
    while fits(memory, high, recipe, stage, ranks, besides):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(memory, middle, recipe, stage, ranks, besides):
            low = middle
        else:
            high = middle
    return low


def fewest_ranks(memory: int, parameters: int, recipe: Recipe, stage: Stage, besides: int = 0) -> int | None:
    """The fewest ranks on which a training state fits; None where no number of ranks is enough."""
    if not fits(memory, parameters, recipe, stage, max(parameters, 1), besides):
        return None
    low, high = 0, 1  # does not fit, may fit
    while not fits(memory, parameters, recipe, stage, high, besides):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(memory, parameters, recipe, stage, middle, besides):
            high = middle
        else:
            low = middle
    return high


def _stage(stage: Stage) -> Stage:
    if stage not in tuple(Stage):
        raise BadInput(f"no stage is called {stage!r}; there are {', '.join(Stage)}")
    return Stage(stage)


def _bytes(elements: int, each: float) -> int:
    return math.ceil(elements * each)
