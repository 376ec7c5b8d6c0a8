"""Memory of any training step, to play with: what fits where, and what it takes.

A widget of menus over one picture, the same that a measured step gets. Where widgets do not work it shows itself as the
picture of what it began with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from reference.memory.gpus import GPUS
from reference.memory.recipe import RECIPES, Stage
from reference.memory.recompute import Recompute
from reference.memory.workload import Workload
from reference.models import PRESETS

from . import memory
from .live import Live
from .style import DPI, WIDTH, Picture

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BATCHES = (1, 2, 4, 8, 16, 32)
SEQUENCES = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
TRAINED = tuple(name for name, recipe in RECIPES.items() if recipe.gradients)

STAGES: Mapping[Stage, str] = MappingProxyType(
    {Stage.DDP: "DDP", Stage.ZERO1: "ZeRO-1", Stage.ZERO2: "ZeRO-2", Stage.ZERO3: "ZeRO-3, FSDP"}
)


@dataclass(frozen=True)
class Choice:
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
        model, recipe = PRESETS[self.model], RECIPES[self.recipe]
        return Workload(model, recipe, self.stage, self.ranks, self.batch, self.sequence, self.recompute)

    def draw(self) -> Picture:
        """Its memory, layer after layer, against the GPU's."""
        return memory.draw(self.workload.history(), limit=(self.gpu, GPUS[self.gpu]))


MENUS: Mapping[str, tuple[str, tuple[tuple[str, Any], ...]]] = MappingProxyType(
    {
        "model": ("model", tuple((name, name) for name in PRESETS)),
        "gpu": ("GPU", tuple((name, name) for name in GPUS)),
        "recipe": ("recipe", tuple((f"{name} ({RECIPES[name].total:.3g} B)", name) for name in TRAINED)),
        "stage": ("stage", tuple((name, stage) for stage, name in STAGES.items())),
        "ranks": ("ranks", tuple((f"{n:,}", n) for n in RANKS)),
        "batch": ("batch", tuple((f"{n}", n) for n in BATCHES)),
        "sequence": ("sequence", tuple((f"{n:,}", n) for n in SEQUENCES)),
        "recompute": ("recompute", tuple((how.value, how) for how in Recompute)),
    }
)
"""By field of `Choice`: the menu's name, and (words, value) of what can be chosen."""


class Explorer(Live):
    """Menus over a picture that follows them.

    Args:
        choice: what to begin with; it need not be in the menus.
    """

    def __init__(self, choice: Choice) -> None:
        super().__init__(choice.draw())
        self.choice = choice

    def choose(self, **changes: Any) -> bytes:
        """Choose anew, by fields of `Choice`. Returns the picture, as a PNG file."""
        self.choice = replace(self.choice, **changes)
        return self.choice.draw().png()

    def make_widget(self) -> Any:
        """The menus over the picture."""
        return _widget(self)

    def __repr__(self) -> str:
        return f"<Explorer: {self.still!r}>"


def explore(**choice: Any) -> Explorer:
    """Memory of a step of `model` on `gpu`s; begin with any fields of `Choice`: `explore(model="llama3-70b")`."""
    return Explorer(Choice(**choice))


def _widget(explorer: Explorer) -> Any:
    import ipywidgets as widgets

    image = widgets.Image(format="png", layout={"width": f"{round(WIDTH * DPI)}px"})
    image.value = explorer.still.png()

    def menu(field: str) -> Any:
        words, options = MENUS[field]
        here = getattr(explorer.choice, field)
        if here not in [value for _, value in options]:
            options = (*options, (str(here), here))
        return widgets.Dropdown(description=words, options=options, value=here, layout={"width": "196px"})

    def following(field: str) -> Callable[[dict[str, Any]], None]:
        def follow(change: dict[str, Any]) -> None:
            image.value = explorer.choose(**{field: change["new"]})

        return follow

    menus = {field: menu(field) for field in MENUS}
    for field, one in menus.items():
        one.observe(following(field), "value")
    rows = [widgets.HBox(list(menus.values())[i : i + 4]) for i in (0, 4)]
    return widgets.VBox([*rows, image])
