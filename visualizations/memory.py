"""What memory is taken for: over a step, by stage and ranks, and the life of a shard.

Kinds are stacked in one order everywhere: parameters, gradients, optimizer state, activations, buffers. The limit of
the device is a line, and what goes beyond it is hatched. The same picture for a measured step and for a planned one.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reference.memory.history import KINDS, History, Kind, Mark
from reference.memory.recipe import Breakdown

from .style import SMALL, TEXT, Colour, Picture, bytes_text, figure, plain

FACES = {
    Kind.PARAMETERS: "#F0E442",
    Kind.GRADIENTS: Colour.WEIGHT_GRADIENT,
    Kind.OPTIMIZER: Colour.OPTIMIZER,
    Kind.ACTIVATIONS: Colour.FORWARD,
    Kind.BUFFERS: Colour.IDLE,
}

Limit = tuple[str, float]
"""Name of a device, and bytes of its memory."""

Case = tuple[str, int]
"""Name of a strategy, and number of ranks."""

COLUMNS = 1500  # of a picture over time; more moments than that are drawn as the largest of several
MANY = 12  # bars: from here on their totals stand upright
FAR = 3  # a limit that many times above the peak is named, not drawn to scale


def draw(history: History, *, limit: Limit | None = None, title: str = "") -> Picture:
    """Memory by kind, moment after moment; phases, and the peak with what it is made of.

    Args:
        history: of a gauge, or of a plan.
        limit: of the device.
        title: the finding; by default the peak, what most of it is for, and whether it fits.
    """
    picture = figure(3.4, title or finding(history, limit))
    axes = plain(picture.add_subplot())
    moments, usage = _columns(history)
    edges = np.append(moments, len(history.usage))
    usage = np.vstack([usage, usage[-1:]])  # steps end where the last moment does
    axes.stackplot(edges, usage.T, step="post", linewidth=0, colors=[FACES[kind] for kind in KINDS])
    axes.set(xlim=(0, len(history.usage)), ylim=(0, _height(history.peak, limit)))
    axes.grid(False, axis="x")
    axes.set_xlabel(f"{history.moment}, in the order in which they run", fontsize=TEXT, loc="left")
    _bytes_axis(axes)
    _limit(axes, limit, history.peak, edges, usage.sum(axis=1))
    _phases(axes, history)
    _peak(axes, history)
    return picture


def draw_state(
    cases: Mapping[Case, Breakdown],
    *,
    measured: Mapping[Case, Breakdown] | None = None,
    limit: Limit | None = None,
    title: str = "",
) -> Picture:
    """Bars of training state, each with its total; dots where it was measured.

    Args:
        cases: by strategy and ranks, what the formula says; bars of one strategy stand together.
        measured: what was measured, of any of the cases.
        limit: of the device.
        title: the finding; by default the largest and the smallest.
    """
    picture = figure(3.4, title or _range(cases))
    axes = plain(picture.add_subplot())
    axes.grid(False, axis="x")
    places, groups = _places(list(cases))
    rows = np.array([_state(one) for one in cases.values()], dtype=float)
    bottoms = np.zeros(len(rows))
    for column, kind in enumerate(KINDS[:3]):
        axes.bar(places, rows[:, column], 0.8, bottoms, color=FACES[kind], label=kind.value, zorder=2)
        bottoms += rows[:, column]
    style = {"ha": "center", "fontsize": SMALL, "textcoords": "offset points", "rotation": 90 * (len(cases) > MANY)}
    for place, total in zip(places, bottoms, strict=True):
        axes.annotate(bytes_text(total), (place, total), (0, 6 if measured else 4), **style)
    highest = max(bottoms.max(), *(one.total for one in (measured or {}).values())) if measured else bottoms.max()
    _dots(axes, dict(zip(cases, places, strict=True)), measured or {})
    room = 1.2 if len(cases) > MANY else 1
    axes.set(ylim=(0, room * _height(highest, limit)), xlim=(places[0] - 0.7, places[-1] + 0.7))
    axes.set_xticks(places, [f"{ranks}" for _, ranks in cases])
    axes.tick_params(axis="x", length=0, labelsize=SMALL - 1.5 * (len(cases) > MANY))
    words = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
    for strategy, place in groups:
        axes.annotate(strategy, (place, 0), (0, -27), ha="center", fontsize=TEXT, fontweight="bold", **words)
    axes.annotate("ranks", (axes.get_xlim()[0], 0), (-4, -13), ha="right", fontsize=SMALL, **words)
    _bytes_axis(axes)
    _limit(axes, limit, highest, None, None)
    _legend(axes, [(kind.value, kind) for kind in KINDS[:3]], "bars: formula\ndots: measured" if measured else None)
    return picture


def draw_life(history: History, *, title: str = "") -> Picture:
    """When each unit of a model is whole on this rank: a thin line where it is a shard, a bar where it is gathered.

    Args:
        history: of a gauge that followed units by name.
        title: the finding; by default how many are whole at once.
    """
    whole = {name: _whole(sizes) for name, sizes in history.units.items()}
    picture = figure(0.3 * len(whole) + 1.1, title or _together(whole))
    axes = plain(picture.add_subplot())
    axes.grid(False)
    axes.spines[["left"]].set_visible(False)
    axes.set(xlim=(0, len(history.usage)), ylim=(len(whole) - 0.4, -0.6))
    axes.set_yticks(range(len(whole)), list(whole))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{history.moment}, in the order in which they run", fontsize=TEXT, loc="left")
    for row, here in enumerate(whole.values()):
        for begin, end, gathered in _runs(here):
            high = 0.36 if gathered else 0.05
            box = Rectangle((begin, row - high), end - begin, 2 * high, facecolor=FACES[Kind.PARAMETERS], zorder=2)
            axes.add_patch(box)
            box.set(edgecolor="#9A9000" if gathered else "none", linewidth=0.5)
    _phases(axes, history)
    largest = max((int(sizes.max()) for sizes in history.units.values()), default=0)
    words = f"thin: sharded   bar: whole, {bytes_text(largest)} at most"
    place = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(words, (1, 0), (0, -19), ha="right", va="top", fontsize=SMALL, color=Colour.FAINT, **place)
    return picture


def finding(history: History, limit: Limit | None = None) -> str:
    """The default title: the peak, what most of it is for, and whether it fits."""
    kind = max(history.at_peak, key=lambda kind: history.at_peak[kind])
    share = history.at_peak[kind] / max(history.peak, 1)
    words = f"{bytes_text(history.peak)} at the peak, {share:.0%} of it {kind}"
    if limit is None:
        return words
    name, size = limit
    if history.peak > size:
        return f"{words}: {bytes_text(history.peak - size)} too much for {name}"
    return f"{words}: {bytes_text(size - history.peak)} of {name} stay free"


def _range(cases: Mapping[Case, Breakdown]) -> str:
    def words(case: Case) -> str:
        return f"{bytes_text(cases[case].total)} ({case[0]}, {case[1]} rank{'s' * (case[1] > 1)})"

    most, least = (choose(cases, key=lambda case: cases[case].total) for choose in (max, min))
    return f"Between {words(least)} and {words(most)} on each rank"


def _together(whole: Mapping[str, np.ndarray]) -> str:
    most = int(np.sum(list(whole.values()), axis=0).max()) if whole else 0
    return f"At most {most} of {len(whole)} units {'is' if most == 1 else 'are'} whole at once"


def _columns(history: History) -> tuple[np.ndarray, np.ndarray]:
    """Moments to draw and their rows: all of them, or of each few the one with the most."""
    group = -(-len(history.usage) // COLUMNS)
    begins, total = np.arange(0, len(history.usage), group), history.total
    largest = [begin + int(total[begin : begin + group].argmax()) for begin in begins]
    return begins, history.usage[largest]


def _height(peak: float, limit: Limit | None) -> float:
    return 1.12 * max(peak, limit[1] if limit and limit[1] <= FAR * peak else 0, 1)


def _bytes_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
    axes.set_ylabel("memory", fontsize=TEXT)


def _limit(axes: Axes, limit: Limit | None, peak: float, edges: np.ndarray | None, total: np.ndarray | None) -> None:
    """The line, its name, and hatches on what is above it."""
    if limit is None:
        return
    name, size = limit
    words = f"{name}, {bytes_text(size)}"
    style = {"fontsize": SMALL, "color": Colour.INK, "textcoords": "offset points", "ha": "left", "zorder": 6}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    if size > FAR * peak:
        axes.annotate(f"↑ {words}", (0.005, 1), (2, -4), xycoords="axes fraction", va="top", bbox=box, **style)
        return
    axes.axhline(size, color=Colour.INK, linewidth=1.2, zorder=5)
    axes.annotate(words, (0.005, size), (2, 3), xycoords=axes.get_yaxis_transform(), bbox=box, **style)
    if total is not None and (total > size).any():
        over = {"facecolor": "none", "edgecolor": Colour.ERROR, "hatch": "////", "linewidth": 0, "alpha": 0.7}
        axes.fill_between(edges, size, np.maximum(total, size), step="post", zorder=4, **over)


def _phases(axes: Axes, history: History) -> None:
    """A line where a phase begins, and its name above it where there is room."""
    inches = axes.figure.get_figwidth() * 0.66 / len(history.usage)
    words = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
    for mark, following in pairwise([*history.marks, Mark("", len(history.usage))]):
        axes.axvline(mark.moment, color=Colour.INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=5)
        if (following.moment - mark.moment) * inches > 0.075 * len(mark.label) + 0.05:
            axes.annotate(mark.label, (mark.moment, 1), (2, 3), fontsize=SMALL, color=Colour.FAINT, **words)
        elif not following.label:  # the last one may begin before its line
            end = len(history.usage)
            axes.annotate(mark.label, (end, 1), (0, 3), ha="right", fontsize=SMALL, color=Colour.FAINT, **words)


def _peak(axes: Axes, history: History) -> None:
    """A dot at the peak, and beside the picture what it is made of."""
    moment, peak = history.peak_moment + 0.5, history.peak
    axes.plot(moment, peak, marker="o", color=Colour.INK, markersize=4.5, markerfacecolor="white", zorder=7)
    parts = [(f"{kind.value}  {bytes_text(size)}", kind) for kind, size in history.at_peak.items()]
    _legend(axes, parts, f"at the peak  {bytes_text(peak)}", heading=True)


def _legend(axes: Axes, parts: Sequence[tuple[str, Kind]], words: str | None, heading: bool = False) -> None:
    """Kinds from top to bottom, as they are stacked, to the right of the chart."""
    patches = [Patch(facecolor=FACES[kind], edgecolor="none", label=label) for label, kind in reversed(parts)]
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.02), "borderaxespad": 0, "frameon": False}
    legend = axes.legend(handles=patches, fontsize=SMALL, title=words, title_fontsize=SMALL, alignment="left", **place)
    legend.get_title().set_fontweight("bold" if heading else "normal")


def _state(state: Breakdown) -> tuple[int, int, int]:
    return state.parameters, state.gradients, state.optimizer


def _places(cases: Sequence[Case]) -> tuple[np.ndarray, list[tuple[str, float]]]:
    """Where bars stand, with a gap between groups, and where the names of groups go."""
    gaps = np.cumsum([0.0] + [0.7 if a[0] != b[0] else 0.0 for a, b in pairwise(cases)])
    places = np.arange(len(cases)) + gaps
    groups = [(name, [index for index, _ in members]) for name, members in groupby(enumerate(cases), lambda c: c[1][0])]
    return places, [(name, float(places[indices].mean())) for name, indices in groups]


def _dots(axes: Axes, places: Mapping[Case, float], measured: Mapping[Case, Breakdown]) -> None:
    """Where each kind ends in the stack that was measured."""
    for case, state in measured.items():
        heights = np.cumsum(_state(state))
        style = {"markersize": 4.5, "color": Colour.INK, "markeredgecolor": "white", "markeredgewidth": 0.7}
        axes.plot([places[case]] * 3, heights, marker="o", linestyle="none", zorder=4, **style)


def _whole(sizes: np.ndarray) -> np.ndarray:
    """At which moments a unit is more than a shard. One that never changes is whole, or never is: it says nothing."""
    return sizes > (int(sizes.min()) + int(sizes.max())) / 2


def _runs(flags: np.ndarray) -> list[tuple[int, int, bool]]:
    """Stretches of equal flags: (from, to, flag)."""
    edges = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist(), len(flags)]
    return [(begin, end, bool(flags[begin])) for begin, end in pairwise(edges)]
