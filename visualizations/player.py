"""Players: a run that one can step through, back and forth.

A player is a slider over pictures, drawn when they are first looked at. Where widgets do not work (a page on the web, a
PDF, a notebook without a kernel) it shows itself as one picture that holds the whole run.
"""

from collections.abc import Callable, Sequence
from typing import Any

from reference.errors import require_sizes
from reference.trace import Timeline, Trace
from reference.trace.contents import Contents

from . import collective
from . import timeline as lanes
from .live import Live
from .style import DPI, WIDTH, Picture, seconds_text

PAUSE = 700  # milliseconds between two steps of a collective
LENGTH = 8000  # milliseconds that a timeline plays


class Player(Live):
    """Pictures one after another, with a button to play them and a slider to hold them.

    Args:
        frames: how many pictures.
        draw: makes picture number i.
        caption: words beside the slider for picture number i.
        pause: milliseconds between two pictures when it plays.
        still: the picture that stands for all of them.
    """

    def __init__(
        self,
        frames: int,
        draw: Callable[[int], Picture],
        caption: Callable[[int], str],
        pause: int,
        still: Picture,
    ) -> None:
        super().__init__(still)
        self.frames, self.draw, self.caption, self.pause = frames, draw, caption, pause
        self._drawn: dict[int, bytes] = {}

    def frame(self, index: int) -> bytes:
        """Picture number `index`, as a PNG file; drawn once."""
        if index not in self._drawn:
            self._drawn[index] = self.draw(index).png()
        return self._drawn[index]

    def make_widget(self) -> Any:
        """A slider with a play button over the pictures."""
        import ipywidgets as widgets

        last = self.frames - 1
        play = widgets.Play(min=0, max=last, value=0, interval=self.pause, show_repeat=False)
        slider = widgets.IntSlider(min=0, max=last, value=0, readout=False, layout={"width": "420px"})
        caption = widgets.Label(self.caption(0))
        image = widgets.Image(value=self.frame(0), format="png", layout={"width": f"{round(WIDTH * DPI)}px"})

        def show(change: dict[str, Any]) -> None:
            caption.value, image.value = self.caption(change["new"]), self.frame(change["new"])

        slider.observe(show, "value")
        widgets.jslink((play, "value"), (slider, "value"))
        return widgets.VBox([widgets.HBox([play, slider, caption]), image])

    def __repr__(self) -> str:
        return f"<Player of {self.frames}: {self.still!r}>"


def steps(trace: Trace, contents: Sequence[Contents], *, title: str = "") -> Player:
    """A collective, one step at a time. Arguments as of `collective.draw`."""
    every = collective.steps(trace, contents)

    def draw(index: int) -> Picture:
        return collective.draw(trace, contents, title=title, shown=[every[index].number])

    def caption(index: int) -> str:
        return f"step {every[index].number} of {every[-1].number}" if index else "beginning"

    return Player(len(every), draw, caption, PAUSE, collective.draw(trace, contents, title=title))


def timeline(timeline: Timeline, *, title: str = "", frames: int = 60) -> Player:
    """A timeline that unfolds, in `frames` pictures. Raises BadInput if that is none."""
    require_sizes(frames=frames)

    def now(index: int) -> float:
        return timeline.duration * index / max(frames - 1, 1)

    def draw(index: int) -> Picture:
        return lanes.draw(timeline, title=title, now=now(index))

    still = lanes.draw(timeline, title=title)
    return Player(frames, draw, lambda index: seconds_text(now(index)), LENGTH // frames, still)
