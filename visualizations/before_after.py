"""Memory over time in several ways of taking the same step, side by side on one scale: what it was, and what it became.

Kinds are stacked and coloured as in `visualizations.memory`.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from reference.memory.history import KINDS, History, Mark

from .memory import FACES, Limit
from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain

COLUMNS = 800  # of a panel; where there are more moments, each column is the largest of several


def draw(histories: Mapping[str, History], *, limit: Limit | None = None, title: str = "") -> Picture:
    """One panel for each history, from left to right, and each with its peak.

    Args:
        histories: by name, of steps that were taken in different ways.
        limit: name of a device, and bytes of its memory.
        title: the finding; by default what each needs at most.
    """
    picture = figure(3.2, title or finding(histories))
    panels = picture.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    highest = max(*(history.peak for history in histories.values()), limit[1] if limit else 0)
    for axes, (name, history) in zip(panels, histories.items(), strict=True):
        _panel(plain(axes), name, history, limit)
        _phases(axes, history, 0.72 * picture.get_figwidth() / len(histories))
        axes.set(xlim=(0, 1), ylim=(0, 1.12 * highest))
        axes.tick_params(axis="y", left=axes is panels[0])
    panels[0].yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
    panels[0].set_ylabel("memory", fontsize=TEXT)
    moments = next(iter(histories.values())).moment
    scale = f"{moments}, in the order in which they run; each panel has its own scale from left to right"
    picture.supxlabel(scale, fontsize=SMALL)
    if limit:
        words = {"xycoords": panels[0].get_yaxis_transform(), "textcoords": "offset points", "fontsize": SMALL}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
        panels[0].annotate(f"{limit[0]}, {bytes_text(limit[1])}", (0, limit[1]), (3, 4), bbox=box, zorder=6, **words)
    patches = [Patch(facecolor=FACES[kind], label=kind.value) for kind in reversed(KINDS)]
    look = {"frameon": False, "fontsize": SMALL, "bbox_to_anchor": (1.01, 1.02), "borderaxespad": 0}
    panels[-1].legend(handles=patches, loc="upper left", **look)
    return picture


def finding(histories: Mapping[str, History]) -> str:
    """The default title."""
    return ", ".join(f"{name} {bytes_text(history.peak)}" for name, history in histories.items())


def columns(usage: NDArray[np.int64], most: int = COLUMNS) -> NDArray[np.int64]:
    """[moments, kinds] -> [at most `most`, kinds]: of each few neighbouring moments the one with the most."""
    group = -(-len(usage) // most)
    begins = range(0, len(usage), group)
    return usage[[begin + int(usage[begin : begin + group].sum(axis=1).argmax()) for begin in begins]]


def _panel(axes: Axes, name: str, history: History, limit: Limit | None) -> None:
    usage = columns(history.usage)
    usage = np.vstack([usage, usage[-1:]])  # a step is drawn from its moment to the next one
    edges, total = np.linspace(0, 1, len(usage)), usage.sum(axis=1)
    axes.stackplot(edges, usage.T, step="post", linewidth=0, colors=[FACES[kind] for kind in KINDS])
    axes.grid(False, axis="x")
    axes.set_xticks([])
    place = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL, "zorder": 7}
    summit = min(max((history.peak_moment + 0.5) / len(history.usage), 0.15), 0.85)
    axes.annotate(bytes_text(history.peak), (summit, history.peak), (0, 4), fontweight="bold", **place)
    axes.set_xlabel(name, fontsize=TEXT)
    if limit:
        axes.axhline(limit[1], color=Colour.INK, linewidth=1.2, zorder=5)
        over = {"facecolor": "none", "edgecolor": Colour.ERROR, "hatch": "////", "linewidth": 0, "zorder": 4}
        if history.peak > limit[1]:
            axes.fill_between(edges, limit[1], np.maximum(total, limit[1]), step="post", **over)


def _phases(axes: Axes, history: History, inches: float) -> None:
    """A line where a phase begins, and above it its name, or where there is no room its first letter."""
    words = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
    for mark, following in pairwise([*history.marks, Mark("", len(history.usage))]):
        place, share = mark.moment / len(history.usage), (following.moment - mark.moment) / len(history.usage)
        name = mark.label if share * inches > 0.075 * len(mark.label) + 0.05 else mark.label[:1]
        axes.axvline(place, color=Colour.INK, linewidth=0.6, linestyle=(0, (2, 2)), zorder=5)
        axes.annotate(name, (place, 1), (1, 3), fontsize=SMALL, color=Colour.FAINT, **words)
