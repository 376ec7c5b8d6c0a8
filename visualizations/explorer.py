"""Explorers: choices to play with, in menus and sliders over one picture that follows them.

An explorer is a frozen dataclass that draws itself, and a control for each of its fields. Where widgets do not work it
shows itself as the picture of what it began with.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from types import MappingProxyType
from typing import Any

from reference.errors import BadInput

from .live import BESIDE, Live
from .style import DPI, WIDTH, Colour, Picture

LOOK: Mapping[str, Any] = MappingProxyType(
    {"layout": {"width": f"{round(WIDTH * DPI / 2) - 4}px"}, "style": {"description_width": "124px"}}
)
"""Of a control: two side by side are as wide as the picture, and names and values have room."""

DIGITS = 9  # after the point, of a slider


def named(things: Mapping[str, Any], name: str, what: str) -> Any:
    """The one of these that has this name. Raises BadInput if none has."""
    if name not in things:
        raise BadInput(f"there is no {what} {name!r}: there are {', '.join(things)}")
    return things[name]


@dataclass(frozen=True)
class Choice:
    """What the controls say. Subclasses add a field for each of them, and say what to draw."""

    @property
    def idle(self) -> Collection[str]:
        """Fields that change nothing as long as the others are what they are."""
        return ()

    def draw(self) -> Picture:
        """What follows. Raises BadInput if the fields do not go together."""
        raise NotImplementedError


@dataclass(frozen=True)
class Menu:
    """A choice from a few values."""

    name: str
    values: tuple[Any, ...]
    words: Callable[[Any], str] = str  # for a value

    def make(self, here: Any) -> Any:
        """Its widget; it begins with `here`, which need not be among the values."""
        import ipywidgets as widgets

        values = self.values if here in self.values else (*self.values, here)
        options = [(self.words(value), value) for value in values]
        return widgets.Dropdown(description=self.name, options=options, value=here, **LOOK)

    def read(self, value: Any) -> Any:
        """What is chosen where the widget has this value."""
        return value


@dataclass(frozen=True)
class Slider:
    """A choice of a number."""

    name: str
    least: float
    most: float
    step: float  # an int where the field is one

    def make(self, here: float) -> Any:
        """Its widget; it begins with `here`, which may be beyond its ends."""
        import ipywidgets as widgets

        kind = widgets.FloatSlider if isinstance(self.step, float) else widgets.IntSlider
        ends = {"min": min(self.least, here), "max": max(self.most, here), "step": self.step}
        return kind(description=self.name, value=here, continuous_update=False, **ends, **LOOK)

    def read(self, value: float) -> float:
        """What is chosen where the widget has this value: a browser adds up steps, and says 1.2500000000000002."""
        return round(value, DIGITS)


class Explorer(Live):
    """Controls over a picture that follows them.

    Args:
        choice: what to begin with.
        controls: by field of `choice`, in the order in which they are shown: half of them left, half of them right.
    """

    def __init__(self, choice: Choice, controls: Mapping[str, Menu | Slider]) -> None:
        super().__init__(choice.draw())
        self.choice, self.controls = choice, controls

    def choose(self, **changes: Any) -> bytes:
        """Choose anew, by fields of the choice. Returns the picture, as a PNG file.

        Raises:
            BadInput: if the fields do not go together; they are kept, so that the next change can mend it.
        """
        self.choice = replace(self.choice, **changes)
        self.still = self.choice.draw()
        self.seen, self._alt = self.still.png(), self.still.alt
        return self.seen

    def make_widget(self) -> Any:
        """The controls, and words about a choice that cannot be."""
        import ipywidgets as widgets

        controls = {field: control.make(getattr(self.choice, field)) for field, control in self.controls.items()}
        words = widgets.HTML(style={"text_color": Colour.ERROR})  # a label has one line, and cuts what is longer

        def disable_idle() -> None:
            for field, control in controls.items():
                control.disabled = field in self.choice.idle

        def follow(field: str, change: dict[str, Any]) -> None:
            try:
                chosen = self.controls[field].read(change["new"])
                self.show(self.choose(**{field: chosen}), self.still.alt)
                words.value = ""
            except BadInput as problem:
                words.value = escape(str(problem))
            disable_idle()

        disable_idle()
        for field, control in controls.items():
            control.observe(partial(follow, field), "value")
        column, half = list(controls.values()), len(controls) // 2
        columns = widgets.HBox([widgets.VBox(column[:half]), widgets.VBox(column[half:])], **BESIDE)
        return widgets.VBox([columns, words])

    def __repr__(self) -> str:
        return f"<Explorer: {self.still!r}>"
