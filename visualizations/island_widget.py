"""Islands, H, bits and a link, to play with: what share of its time an island computes, and what it sends in a day.

On the left is that share for any link, as a line for each of three ways: gradients summed at each step, the chosen
islands, and the same with a message that has some steps to arrive. The dots are the link that was chosen. On the right
is a round on it: computing is blue, and orange what is waited for. Formulas, without latencies:

    a message takes    2(n-1)/n * parameters * bits / rate
    an island computes H * step / (H * step + what it waits for)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reference.errors import BadInput

from . import explorer, style
from .explorer import Explorer, Menu, Slider
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain, seconds_text, write

DAY = 86_400
MODELS = (124e6, 1e9, 10e9, 70e9)
RATES = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)  # Mb/s
FULL = 32  # bits of a gradient


@dataclass(frozen=True)
class Choice(explorer.Choice):
    """What the controls say."""

    islands: int = 4
    inner_steps: int = 100
    bits: int = 8
    megabits: int = 500
    parameters: float = 10e9
    step: float = 20.0  # seconds that an island computes for
    overlap: int = 0  # steps while which a message is under way

    def __post_init__(self) -> None:
        if self.islands < 1 or self.inner_steps < 1:
            raise BadInput(f"islands and inner steps are 1 or more, not {self.islands} and {self.inner_steps}")
        if not 0 <= self.overlap <= self.inner_steps:
            raise BadInput(f"a message is under way for a round at most, {self.inner_steps} steps, not {self.overlap}")

    def message(self, bits: float) -> float:
        """Bytes that an island sends to meet the others once."""
        return 2 * (self.islands - 1) / self.islands * self.parameters * bits / 8

    def waits(self, bits: float, overlap: float, megabits: Any) -> Any:
        """Seconds that an island waits for a message, at rates in 10^6 bits a second."""
        return np.maximum(0.0, 8 * self.message(bits) / (np.asarray(megabits) * 1e6) - overlap * self.step)

    def utilisation(self, inner_steps: int, bits: float, overlap: float, megabits: Any) -> Any:
        """The share of time in which an island computes."""
        computes = inner_steps * self.step
        return computes / (computes + self.waits(bits, overlap, megabits))

    @property
    def ways(self) -> dict[str, tuple[int, float, float]]:
        """Steps of a round, bits and overlap of each line."""
        found = {f"each step, {FULL} bits": (1, FULL, 0), "islands": (self.inner_steps, self.bits, 0)}
        if self.overlap:
            arrives = "1 step" if self.overlap == 1 else f"{self.overlap} steps"
            found[f"{arrives} to arrive"] = (self.inner_steps, self.bits, self.overlap)
        return found

    @property
    def day(self) -> float:
        """Bytes that an island sends in a day."""
        computes = self.inner_steps * self.step
        return self.message(self.bits) * DAY / (computes + float(self.waits(self.bits, self.overlap, self.megabits)))

    def draw(self) -> Picture:
        """Lines over links, and a round."""
        share = float(self.utilisation(self.inner_steps, self.bits, self.overlap, self.megabits))
        title = f"An island computes {share:.0%} of the time, and sends {bytes_text(self.day)} a day"
        picture = figure(3.4, title)
        lines, bars = picture.subplots(1, 2, width_ratios=(1.9, 1.0))
        self._lines(lines)
        self._round(bars)
        return picture

    def _lines(self, axes: Axes) -> None:
        rates = np.geomspace(RATES[0], RATES[-1], 120)
        for (name, way), (colour, dash, marker) in zip(self.ways.items(), style.lines(len(self.ways)), strict=True):
            axes.plot(rates, self.utilisation(*way, rates), color=colour, linestyle=dash, linewidth=1.7, label=name)
            chosen = float(self.utilisation(*way, self.megabits))
            axes.plot([self.megabits], [chosen], marker=marker, markersize=7, color=colour, markeredgecolor="white")
        plain(axes).set(xscale="log", ylim=(0, 1.04))
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        axes.set_xlabel("link, Mb/s", fontsize=TEXT, loc="left")
        axes.set_title("share of time in which an island computes", fontsize=TEXT, loc="left")
        look = {"frameon": False, "fontsize": SMALL, "labelcolor": Colour.INK, "ncols": 3, "columnspacing": 1.2}
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.17), **look)

    def _round(self, axes: Axes) -> None:
        plain(axes).grid(False)
        ways = list(zip(self.ways.values(), style.lines(len(self.ways)), strict=True))
        for place, ((inner_steps, bits, overlap), (colour, _, marker)) in enumerate(ways):
            computes, waits = inner_steps * self.step, float(self.waits(bits, overlap, self.megabits))
            share = computes / (computes + waits)
            axes.barh(place, share, color=Colour.FORWARD, height=0.5)
            axes.barh(place, 1 - share, left=share, color=Colour.COMMUNICATION, height=0.5)
            words = f"{seconds_text(computes)} computing, {seconds_text(waits)} waiting"
            axes.plot([0.025], [place - 0.42], marker=marker, markersize=6, color=colour, markeredgecolor="white")
            write(axes, 0.065, place - 0.42, words, SMALL, Colour.INK, ha="left")
        axes.set(xlim=(0, 1), ylim=(len(ways) - 0.5, -0.75), xticks=[], yticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_title(f"a round at {self.megabits:,} Mb/s", fontsize=TEXT, loc="left")


CONTROLS: Mapping[str, Menu | Slider] = MappingProxyType(
    {
        "islands": Slider("islands", 2, 16, 1),
        "inner_steps": Slider("H", 1, 500, 1),
        "bits": Menu("bits", (32, 16, 8, 4)),
        "megabits": Menu("link, Mb/s", RATES),
        "parameters": Menu("parameters", MODELS, lambda number: f"{number / 1e9:g} billion"),
        "step": Slider("seconds of a step", 1.0, 60.0, 1.0),
        "overlap": Slider("steps to arrive", 0, 20, 1),
    }
)
"""By field of `Choice`."""


def explore(**choice: Any) -> Explorer:
    """Lines over links; begin with any fields of `Choice`: `explore(islands=8, megabits=100)`."""
    return Explorer(Choice(**choice), CONTROLS)
