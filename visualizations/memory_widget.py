"""Memory of any training step, to play with: what fits where, and what it takes.

Menus over one picture, the same that a measured step gets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from reference.memory.gpus import GPUS
from reference.memory.recipe import RECIPES, Stage
from reference.memory.recompute import Recompute
from reference.memory.workload import Workload
from reference.models import PRESETS

from . import explorer, memory
from .explorer import Explorer, Menu, named
from .style import Picture

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32)
SEQUENCES = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
TRAINED = tuple(name for name, recipe in RECIPES.items() if recipe.gradients)

STAGES: Mapping[Stage, str] = MappingProxyType(
    {Stage.DDP: "DDP", Stage.ZERO1: "ZeRO-1", Stage.ZERO2: "ZeRO-2", Stage.ZERO3: "ZeRO-3, FSDP"}
)


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the menus say."""

    model: str = "llama3-8b"  # of `PRESETS`
    gpu: str = "H100 SXM"  # of `GPUS`
    recipe: str = "mixed Adam"  # of `RECIPES`
    stage: Stage = Stage.ZERO3
    ranks: int = 8
    batch: int = 1  # windows in the micro-batch of each rank
    sequence: int = 8192  # tokens in a window
    recompute: Recompute = Recompute.NONE

    @property
    def workload(self) -> Workload:
        """The step that is meant."""
        model, recipe = named(PRESETS, self.model, "model"), named(RECIPES, self.recipe, "recipe")
        return Workload(model, recipe, self.stage, self.ranks, self.batch, self.sequence, self.recompute)

    def draw(self) -> Picture:
        """Its memory, layer after layer, against the GPU's."""
        return memory.draw(self.workload.history(), limit=(self.gpu, named(GPUS, self.gpu, "GPU")))


CONTROLS: Mapping[str, Menu] = MappingProxyType(
    {
        "model": Menu("model", tuple(PRESETS)),
        "gpu": Menu("GPU", tuple(GPUS)),
        "ranks": Menu("ranks", RANKS, "{:,}".format),
        "stage": Menu("stage", tuple(STAGES), STAGES.__getitem__),
        "recipe": Menu("recipe", TRAINED, lambda name: f"{name} ({RECIPES[name].total:.3g} B)"),
        "batch": Menu("batch", BATCHES),
        "sequence": Menu("sequence", SEQUENCES, "{:,}".format),
        "recompute": Menu("recompute", tuple(Recompute)),
    }
)
"""By field of `Choice`: what trains where on the left, how on the right."""


def explore(**choice: Any) -> Explorer:
    """Memory of a step of `model` on `gpu`s; begin with any fields of `Choice`: `explore(model="llama3-70b")`."""
    return Explorer(Choice(**choice), CONTROLS)
