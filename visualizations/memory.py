"""What memory is taken for: over a step, in several ways of taking it, by stage and ranks, and the life of a shard.

Kinds are stacked in one order everywhere: parameters, gradients, optimizer state, activations, buffers. The limit of
the device is a line, and what goes beyond it is hatched. The same picture for a measured step and for a planned one.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from reference.errors import BadInput
from reference.memory.history import KINDS, History, Mark, MemoryKind
from reference.memory.recipe import Breakdown

from .style import DPI, SMALL, TEXT, WIDTH, Colour, Picture, amount_axis, bytes_text, figure, lanes, plain, width_of

FACES = {
    MemoryKind.PARAMETERS: "#F0E442",
    MemoryKind.GRADIENTS: Colour.WEIGHT_GRADIENT,
    MemoryKind.OPTIMIZER: Colour.OPTIMIZER,
    MemoryKind.ACTIVATIONS: Colour.FORWARD,
    MemoryKind.BUFFERS: Colour.IDLE,
}

Limit = tuple[str, float]
"""Name of a device, and bytes of its memory."""

Case = tuple[str, int]
"""Name of a strategy, and number of ranks."""

MANY = 9  # bars: from here on their totals stand upright, and numbers of ranks
FAR = 3  # a limit that many times above the peak is named, not drawn to scale


def draw(history: History, *, limit: Limit | None = None, title: str = "") -> Picture:
    """Memory by kind, moment after moment; phases, and the peak with what it is made of.

    Args:
        history: of a gauge, or of a plan.
        limit: of the device.
        title: the finding; by default the peak, what most of it is for, and whether it fits.
    """
    picture = figure(3.4, title or finding(history, limit))
    axes = picture.add_subplot()
    short = _panel(axes, history, limit, 0.63 * WIDTH)
    axes.set_ylim(0, _height(history.peak, limit))
    axes.set_xlabel(_order(history, short), fontsize=TEXT, loc="left")
    amount_axis(axes, "memory", bytes_text)
    _limit_name(axes, limit, history.peak)
    look = {"marker": "o", "markersize": 4.5, "color": Colour.INK, "markerfacecolor": "white", "zorder": 7}
    axes.plot(_middle(history), history.peak, **look)
    parts = [(f"{kind.value}  {bytes_text(size)}", kind) for kind, size in history.at_peak.items()]
    _legend(axes, parts, f"at the peak  {bytes_text(history.peak)}", heading=True)
    return picture


def compare(histories: Mapping[str, History], *, limit: Limit | None = None, title: str = "") -> Picture:
    """The same, of a step that was taken in several ways: side by side on one scale of bytes, each with its peak.

    Args:
        histories: by name, from left to right.
        limit: of the device.
        title: the finding; by default what each needs at most.

    Raises:
        BadInput: if there is no history.
    """
    if not histories:
        raise BadInput("there is no history to draw: give one or more, by name")
    picture = figure(3.2, title or finding_of(histories))
    panels = picture.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    short: list[str] = []
    for axes, (name, history) in zip(panels, histories.items(), strict=True):
        short += _panel(axes, history, limit, 0.66 * WIDTH / len(histories))
        axes.set_xticks([])
        axes.set_xlabel(name, fontsize=TEXT)
        axes.tick_params(axis="y", left=axes is panels[0])
        place = min(max(_middle(history) / len(history.usage), 0.15), 0.85) * len(history.usage)
        words = {"ha": "center", "fontsize": SMALL, "fontweight": "bold", "textcoords": "offset points", "zorder": 7}
        axes.annotate(bytes_text(history.peak), (place, history.peak), (0, 4), **words)
    highest = max(history.peak for history in histories.values())
    panels[0].set_ylim(0, _height(1.1 * highest, limit))  # peaks have their numbers above them
    amount_axis(panels[0], "memory", bytes_text)
    _limit_name(panels[0], limit, highest)
    scale = "each panel has its own scale from left to right"
    picture.supxlabel(f"{scale}: {_order(next(iter(histories.values())), short)}", fontsize=SMALL)
    used = np.sum([history.usage.sum(axis=0) for history in histories.values()], axis=0)
    _legend(panels[-1], [(kind.value, kind) for kind, size in zip(KINDS, used, strict=True) if size], None)
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
    axes.tick_params(axis="x", length=0, labelsize=SMALL, rotation=90 * (len(cases) > MANY))
    below = -27 if len(cases) <= MANY else -14 - 7 * max(len(str(ranks)) for _, ranks in cases)
    words = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
    for strategy, place in groups:
        axes.annotate(strategy, (place, 0), (0, below), ha="center", fontsize=TEXT, fontweight="bold", **words)
    axes.annotate("ranks", (axes.get_xlim()[0], 0), (-4, -13), ha="right", fontsize=SMALL, **words)
    amount_axis(axes, "memory", bytes_text)
    _limit_line(axes, limit)
    _limit_name(axes, limit, highest)
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
    axes = lanes(picture.add_subplot(), dict(enumerate(whole)))
    axes.grid(False)
    axes.set(xlim=(0, len(history.usage)), ylim=(len(whole) - 0.4, -0.6))
    for row, here in enumerate(whole.values()):
        for begin, end, gathered in _runs(here):
            high = 0.36 if gathered else 0.05
            box = Rectangle(
                (begin, row - high), end - begin, 2 * high, facecolor=FACES[MemoryKind.PARAMETERS], zorder=2
            )
            axes.add_patch(box)
            box.set(edgecolor="#9A9000" if gathered else "none", linewidth=0.5)
    short = _phases(axes, history, 0.63 * WIDTH)
    axes.set_xlabel(_order(history, short), fontsize=TEXT, loc="left")
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


def finding_of(histories: Mapping[str, History]) -> str:
    """The default title of several: what each needs at most."""
    return ", ".join(f"{name} {bytes_text(history.peak)}" for name, history in histories.items())


def _range(cases: Mapping[Case, Breakdown]) -> str:
    def words(case: Case) -> str:
        return f"{bytes_text(cases[case].total)} ({case[0]}, {case[1]} rank{'s' * (case[1] > 1)})"

    most, least = (choose(cases, key=lambda case: cases[case].total) for choose in (max, min))
    return f"Between {words(least)} and {words(most)} on each rank"


def _together(whole: Mapping[str, np.ndarray]) -> str:
    most = int(np.sum(list(whole.values()), axis=0).max()) if whole else 0
    return f"At most {most} of {len(whole)} units {'is' if most == 1 else 'are'} whole at once"


def _panel(axes: Axes, history: History, limit: Limit | None, inches: float) -> list[str]:
    """A stack for each moment, the line of the limit with hatches above it, and phases, on axes at least so wide.

    Returns:
        The phases that have no room for their names.
    """
    moments, usage = _columns(history, most=round(inches * DPI))
    edges = np.append(moments, len(history.usage))
    usage = np.vstack([usage, usage[-1:]])  # steps end where the last moment does
    plain(axes).stackplot(edges, usage.T, step="post", linewidth=0, colors=[FACES[kind] for kind in KINDS])
    axes.set_xlim(0, len(history.usage))
    axes.grid(False, axis="x")
    _limit_line(axes, limit)
    if limit and history.peak > limit[1]:
        over = {"facecolor": "none", "edgecolor": Colour.ERROR, "hatch": "////", "linewidth": 0, "alpha": 0.7}
        axes.fill_between(edges, limit[1], np.maximum(usage.sum(axis=1), limit[1]), step="post", zorder=4, **over)
    return _phases(axes, history, inches)


def _columns(history: History, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Moments to draw and their rows: all of them, or of each few the one with the most, so that no peak is lost."""
    group = -(-len(history.usage) // most)
    begins, total = np.arange(0, len(history.usage), group), history.total
    largest = [begin + int(total[begin : begin + group].argmax()) for begin in begins]
    return begins, history.usage[largest]


def _middle(history: History) -> float:
    """Of the moment of the peak."""
    return history.peak_moment + 0.5


def _order(history: History, short: Sequence[str]) -> str:
    """What runs from left to right, and what the letters of phases stand for."""
    letters = "".join(f"; {label[:1]}: {label}" for label in dict.fromkeys(short))
    return f"{history.moment}, in the order in which they run{letters}"


def _height(peak: float, limit: Limit | None) -> float:
    return 1.12 * max(peak, limit[1] if limit and limit[1] <= FAR * peak else 0, 1)


def _limit_line(axes: Axes, limit: Limit | None) -> None:
    if limit:
        axes.axhline(limit[1], color=Colour.INK, linewidth=1.2, zorder=5)


def _limit_name(axes: Axes, limit: Limit | None, peak: float) -> None:
    """Above the line, or at the top where the line is far above the peak."""
    if limit is None:
        return
    name, size = limit
    words = f"{name}, {bytes_text(size)}"
    style = {"fontsize": SMALL, "color": Colour.INK, "textcoords": "offset points", "ha": "left", "zorder": 6}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
    if size > FAR * peak:
        axes.annotate(f"↑ {words}", (0.005, 1), (2, -4), xycoords="axes fraction", va="top", bbox=box, **style)
    else:
        axes.annotate(words, (0.005, size), (2, 3), xycoords=axes.get_yaxis_transform(), bbox=box, **style)


def _phases(axes: Axes, history: History, inches: float) -> list[str]:
    """A line where a phase begins, and its name above it, or its first letter where there is no room for more.

    Returns:
        The phases of which there are letters.
    """
    end, short = len(history.usage), []
    words = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
    look = {"fontsize": SMALL, "color": Colour.FAINT, **words}
    for mark, following in pairwise([*history.marks, Mark("", end)]):
        axes.axvline(mark.moment, color=Colour.INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=5)
        room = (following.moment - mark.moment) * inches / end
        if room > width_of(mark.label, SMALL, "normal") + 0.06:
            axes.annotate(mark.label, (mark.moment, 1), (2, 3), **look)
            continue
        if room > 0.13:
            axes.annotate(mark.label[:1], (mark.moment, 1), (2, 3), **look)
        elif not following.label:  # the last one may begin before its line
            axes.annotate(mark.label[:1], (end, 1), (0, 3), ha="right", **look)
        else:
            continue
        short.append(mark.label)
    return short


def _legend(axes: Axes, parts: Sequence[tuple[str, MemoryKind]], words: str | None, heading: bool = False) -> None:
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
