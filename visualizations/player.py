"""Players: a run that one can step through, back and forth.

A player is a slider over pictures. It begins with the picture that holds the whole run, which is also what is seen
where there is no kernel. Pictures are drawn ahead of the slider, whenever the kernel has nothing else to do.
"""

import asyncio
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from reference.errors import require_sizes
from reference.trace import Timeline, Trace
from reference.trace.contents import Contents

from . import collective
from . import timeline as lanes
from .live import BESIDE, Live
from .style import Picture, seconds_text

PAUSE = 700  # milliseconds between two steps of a collective
LENGTH = 8000  # milliseconds that a timeline plays
WHOLE = "the whole run"
COVERED = 0.88  # how white the future is
TIP = 6  # pixels of an arrow beyond the end of time


class Player(Live):
    """Pictures one after another, with a button to play them and a slider to hold them; at its end, all in one.

    Args:
        frames: how many pictures.
        draw: makes picture number i, as a PNG file.
        caption: words beside the slider for picture number i.
        pause: milliseconds between two pictures when it plays.
        still: the picture that stands for all of them.
    """

    def __init__(
        self,
        frames: int,
        draw: Callable[[int], bytes],
        caption: Callable[[int], str],
        pause: int,
        still: Picture,
    ) -> None:
        super().__init__(still)
        self.frames, self.draw, self.caption, self.pause = frames, draw, caption, pause
        self._drawn: dict[int, bytes] = {frames: self.seen}

    def frame(self, index: int) -> bytes:
        """Picture number `index`, as a PNG file; drawn once. Number `frames` is the whole."""
        if index not in self._drawn:
            self._drawn[index] = self.draw(index)
        return self._drawn[index]

    def make_widget(self) -> Any:
        """A slider with a play button."""
        import ipywidgets as widgets

        play = widgets.Play(min=0, max=self.frames, value=self.frames, interval=self.pause, show_repeat=False)
        look = {"readout": False, "layout": {"flex": "1 1 200px", "max_width": "420px"}}
        slider = widgets.IntSlider(min=0, max=self.frames, value=self.frames, **look)
        caption = widgets.Label(WHOLE)

        def move(change: dict[str, Any]) -> None:
            index = change["new"]
            caption.value = self.caption(index) if index < self.frames else WHOLE
            self.show(self.frame(index), f"{self.still.alt}; {caption.value}")

        def begin(change: dict[str, Any]) -> None:
            if change["new"] and play.value == self.frames:
                play.value = 0

        slider.observe(move, "value")
        play.observe(begin, "playing")
        widgets.jslink((play, "value"), (slider, "value"))
        self._draw_ahead(0)
        return widgets.HBox([play, slider, caption], **BESIDE)

    def _draw_ahead(self, index: int) -> None:
        """Draw the pictures from `index` on, one at a time, between a kernel's other tasks."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # no kernel: they are drawn when they are looked at

        def draw() -> None:
            self.frame(index)
            self._draw_ahead(index + 1)

        if index < self.frames:
            loop.call_later(0.05, draw)

    def __repr__(self) -> str:
        return f"<Player of {self.frames}: {self.still!r}>"


def steps(trace: Trace, contents: Sequence[Contents], *, title: str = "") -> Player:
    """A collective, one step at a time. Arguments as for `collective.draw`."""
    every = collective.steps(trace, contents)

    def draw(index: int) -> bytes:
        return collective.draw(trace, contents, title=title, shown=[every[index].number]).png()

    def caption(index: int) -> str:
        return f"step {every[index].number} of {every[-1].number}" if index else "beginning"

    return Player(len(every), draw, caption, PAUSE, collective.draw(trace, contents, title=title))


def timeline(timeline: Timeline, *, title: str = "", frames: int = 60) -> Player:
    """A timeline that unfolds, in `frames` pictures. Raises BadInput if that is none."""
    require_sizes(frames=frames)

    def now(index: int) -> float:
        return timeline.duration * index / max(frames - 1, 1)

    still = lanes.draw(timeline, title=title)
    veil = Veil(still)

    def draw(index: int) -> bytes:
        return veil.until(index / max(frames - 1, 1))

    return Player(frames, draw, lambda index: seconds_text(now(index)), LENGTH // frames, still)


class Veil:
    """A drawn chart of time whose future can be covered: drawn once, since drawing takes a hundred times as long.

    Args:
        picture: its first axes have time from left to right.
    """

    def __init__(self, picture: Picture) -> None:
        whole = Image.open(io.BytesIO(picture.png())).convert("RGB")
        (left, bottom), (right, top) = picture.axes[0].get_window_extent().get_points() * 2  # pixels, two to a dot
        self.left, self.right = round(left), round(right)
        self.top, self.bottom = round(whole.height - top), round(whole.height - bottom)
        both = Image.new("RGB", (whole.width, 2 * whole.height), "white")
        both.paste(whole, (0, 0))
        both.paste(Image.blend(whole, Image.new("RGB", whole.size, "white"), COVERED), (0, whole.height))
        both = both.quantize(colors=256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        self.whole = both.crop((0, 0, whole.width, whole.height))
        self.covered = both.crop((0, whole.height, whole.width, 2 * whole.height))
        palette = np.array(both.getpalette()).reshape(-1, 3)
        self.ink = int(palette.sum(1).argmin())

    def until(self, share: float) -> bytes:
        """The chart, as a PNG file, with this share of its time seen and a line at the end of that."""
        now = round(self.left + share * (self.right - self.left))
        frame = self.whole.copy()
        future = (min(now, self.right), self.top, self.right + TIP, self.bottom)
        frame.paste(self.covered.crop(future), future)
        frame.paste(self.ink, (now - 1, self.top, now + 1, self.bottom))
        file = io.BytesIO()
        frame.save(file, "PNG", compress_level=1)
        return file.getvalue()
