"""Pipelines of any shape, to play with: what a schedule waits and what it holds, at once.

A menu and sliders over one picture, the same that a simulated or a measured step gets. Where widgets do not work it
shows itself as the picture of what it began with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from reference.errors import BadInput
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, naive, one_f_one_b
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v

from .live import Live
from .schedule_steps import finding
from .schedules import draw
from .style import DPI, WIDTH, Picture

SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {
        "naive": naive,
        "GPipe": gpipe,
        "1F1B": one_f_one_b,
        "ZB-H1": zb_h1,
        "ZB-H2": zb_h2,
        "ZB-V": zb_v,
        "DualPipe": dual_pipe,
        "DualPipeV": dual_pipe_v,
    }
)
"""By name, from ranks and micro-batches."""

LOOPED: Mapping[str, Callable[[int, int, int], Schedule]] = MappingProxyType(
    {"interleaved": interleaved, "breadth-first": breadth_first}
)
"""By name, from ranks, micro-batches and how many stages a rank has."""


@dataclass(frozen=True)
class Choice:
    """What the menu and the sliders say."""

    schedule: str = "1F1B"  # of `SCHEDULES` or `LOOPED`
    ranks: int = 4
    micro_batches: int = 8
    chunks: int = 2  # stages on a rank, where the schedule leaves that open
    forward: float = 1.0  # costs of one micro-batch, of all layers of a rank
    input: float = 1.0
    weight: float = 1.0
    message: float = 0.0  # from one rank to another

    @property
    def order(self) -> Schedule:
        """The schedule that is meant. Raises BadInput if there is none."""
        if self.schedule in LOOPED:
            return LOOPED[self.schedule](self.ranks, self.micro_batches, self.chunks)
        if self.schedule == "DualPipe" and self.ranks % 2:
            raise BadInput(f"DualPipe folds its ranks in pairs: an even number of them works, {self.ranks} does not")
        return SCHEDULES[self.schedule](self.ranks, self.micro_batches)

    @property
    def step(self) -> Simulation:
        """How it runs."""
        order = self.order
        share = order.ranks / max(map(len, order.routes))  # of a rank's layers, that a stage has
        halves = self.forward * share, self.input * share, self.weight * share
        return simulate(order, Costs(*halves, self.message))

    def draw(self) -> Picture:
        """Who computes what when, and what each rank holds."""
        step = self.step
        said = finding(step)
        return draw(step, title=f"{self.schedule}: {said[0].lower()}{said[1:]}", unit="as costs", activations=True)


SLIDERS: Mapping[str, tuple[str, float, float, float]] = MappingProxyType(
    {
        "ranks": ("ranks", 1, 16, 1),
        "micro_batches": ("micro-batches", 1, 64, 1),
        "chunks": ("stages of a rank", 1, 4, 1),
        "forward": ("F, forward", 0.5, 3, 0.1),
        "input": ("I, input grad.", 0.5, 3, 0.1),
        "weight": ("W, weight grad.", 0.5, 3, 0.1),
        "message": ("message", 0, 2, 0.1),
    }
)
"""By field of `Choice`: the slider's name, its least and its most, and its step."""


class Explorer(Live):
    """A menu and sliders over a picture that follows them.

    Args:
        choice: what to begin with.
    """

    def __init__(self, choice: Choice) -> None:
        super().__init__(choice.draw())
        self.choice = choice

    def choose(self, **changes: Any) -> bytes:
        """Choose anew, by fields of `Choice`. Returns the picture, as a PNG file.

        Raises:
            BadInput: if there is no such schedule; the choice is kept, so that the next change can mend it.
        """
        self.choice = replace(self.choice, **changes)
        return self.choice.draw().png()

    def make_widget(self) -> Any:
        """The menu and the sliders over the picture."""
        return _widget(self)

    def __repr__(self) -> str:
        return f"<Explorer: {self.still!r}>"


def explore(**choice: Any) -> Explorer:
    """Bubble and memory of a pipeline; begin with any fields of `Choice`: `explore(schedule="ZB-V", ranks=8)`."""
    return Explorer(Choice(**choice))


def _widget(explorer: Explorer) -> Any:
    import ipywidgets as widgets

    image = widgets.Image(format="png", layout={"width": f"{round(WIDTH * DPI)}px"})
    image.value = explorer.still.png()
    words = widgets.Label("")
    controls = {"schedule": _menu(explorer.choice), **{field: _slider(explorer.choice, field) for field in SLIDERS}}

    def following(field: str) -> Callable[[dict[str, Any]], None]:
        def follow(change: dict[str, Any]) -> None:
            try:
                image.value, words.value = explorer.choose(**{field: change["new"]}), ""
            except BadInput as problem:
                words.value = str(problem)
            controls["chunks"].disabled = explorer.choice.schedule not in LOOPED

        return follow

    for field, control in controls.items():
        control.observe(following(field), "value")
    rows = [widgets.HBox(list(controls.values())[i : i + 4]) for i in (0, 4)]
    return widgets.VBox([*rows, words, image])


def _menu(choice: Choice) -> Any:
    import ipywidgets as widgets

    names = [*SCHEDULES, *LOOPED]
    return widgets.Dropdown(description="schedule", options=names, value=choice.schedule, layout={"width": "198px"})


def _slider(choice: Choice, field: str) -> Any:
    """One that begins where the choice is, even if that is beyond its ends."""
    import ipywidgets as widgets

    name, least, most, step = SLIDERS[field]
    here = getattr(choice, field)
    kind = widgets.FloatSlider if isinstance(step, float) else widgets.IntSlider
    look = {"layout": {"width": "198px"}, "style": {"description_width": "92px"}, "continuous_update": False}
    ends = {"min": min(least, here), "max": max(most, here), "step": step, "value": here}
    return kind(description=name, disabled=field == "chunks" and choice.schedule not in LOOPED, **ends, **look)
