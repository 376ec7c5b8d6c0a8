"""What algorithms cost over size: a line is theory, a dot is a measurement, and crossings carry their number."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, bandwidth_text, bytes_text, figure, lines, plain, seconds_text

Curve = Callable[[float], float]
"""Bytes to seconds, or to bytes per second."""

Points = Sequence[tuple[float, float]]
"""(bytes, seconds) or (bytes, bytes per second)."""

NUMBER = 0.1  # of the width of a chart: more than a size in bytes takes
SAMPLES = 400  # points of a line


def draw(
    curves: Mapping[str, Curve],
    sizes: tuple[float, float],
    *,
    measured: Mapping[str, Points] | None = None,
    dots: str = "measured",
    title: str = "",
) -> Picture:
    """Time over size, both in powers of ten. Marked is each size at which the fastest algorithm changes.

    Args:
        curves: for each algorithm, seconds that a tensor of so many bytes takes by theory.
        sizes: bytes, from and to.
        measured: for each algorithm, or something else, (bytes, seconds) that were measured.
        dots: how they were: "measured" by a clock, or "replayed" on a modelled network.
        title: the finding; by default which is fastest where.

    Raises:
        BadInput: if sizes, or times, are not above 0: powers of ten have no place for them.
    """
    _require_sizes(sizes)
    picture, axes = _chart(title or finding(curves, sizes), sizes, "log", "time", seconds_text)
    ends = _lines(axes, curves, sizes, measured or {}, dots)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    if high / low < 200:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _crossings(axes, curves, sizes)
    _names(axes, ends)
    return picture


def draw_bandwidth(
    curves: Mapping[str, Curve],
    sizes: tuple[float, float],
    *,
    measured: Mapping[str, Points] | None = None,
    limit: tuple[str, float] | None = None,
    title: str = "",
) -> Picture:
    """Bandwidth over size, size in powers of ten.

    Args:
        curves: for each algorithm, bytes per second that it reaches by theory with so many bytes.
        sizes: bytes, from and to.
        measured: for each algorithm, or something else, (bytes, bytes per second) that were measured.
        limit: name and bytes per second of what the hardware can do at most.
        title: the finding; by default the best that was reached, and what share of the limit that is.

    Raises:
        BadInput: if sizes are not above 0, or if there is nothing to draw.
    """
    _require_sizes(sizes)
    measured = measured or {}
    seen = [y for points in measured.values() for size, y in points if sizes[0] <= size <= sizes[1]]
    reached = seen or [curve(sizes[1]) for curve in curves.values()]
    if not reached:
        raise BadInput("there is nothing to draw: give a curve, or what was measured")
    best = max(reached)
    share = f", {best / limit[1]:.0%} of {limit[0]}" if limit else ""
    picture, axes = _chart(
        title or f"{bandwidth_text(best)} at best{share}", sizes, "linear", "bandwidth", bandwidth_text
    )
    ends = _lines(axes, curves, sizes, measured)
    axes.set_ylim(0, 1.12 * max(axes.get_ylim()[1] / 1.05, limit[1] if limit else 0))
    if limit:
        axes.axhline(limit[1], color=Colour.INK, linewidth=1)
        place = {"xytext": (4, 3), "textcoords": "offset points", "ha": "left"}  # where no line reaches it
        words = f"{limit[0]}, {bandwidth_text(limit[1])}"
        axes.annotate(words, (sizes[0], limit[1]), fontsize=SMALL, color=Colour.INK, **place)
    _names(axes, ends)
    return picture


def crossings(curves: Mapping[str, Curve], sizes: tuple[float, float]) -> list[tuple[float, str, str]]:
    """Where the fastest algorithm changes: (bytes, the one that was fastest, the one that is from there on)."""
    if not curves:
        return []
    grid = np.geomspace(*sizes, 20 * SAMPLES)
    names = list(curves)
    fastest = np.argmin([[curves[name](size) for size in grid] for name in names], axis=0)
    changes = [i for i, (a, b) in enumerate(pairwise(fastest)) if a != b]
    return [(float(np.sqrt(grid[i] * grid[i + 1])), names[fastest[i]], names[fastest[i + 1]]) for i in changes]


def finding(curves: Mapping[str, Curve], sizes: tuple[float, float]) -> str:
    """The default title: which algorithm is fastest where. Raises BadInput if there is no curve to tell by."""
    if not curves:
        raise BadInput("without a curve nothing says which algorithm is fastest: give one, or a title")
    changes = crossings(curves, sizes)
    if not changes:
        name = min(curves, key=lambda name: curves[name](sizes[0]))
        return f"Fastest at every size: {name}"
    words = [f"{before} up to {bytes_text(size)}" for size, before, _ in changes]
    return f"Fastest: {', '.join(words)}, {changes[-1][2]} beyond"


def _require_sizes(sizes: tuple[float, float]) -> None:
    if not 0 < sizes[0] < sizes[1] < inf:
        raise BadInput(f"sizes go from some bytes, above 0, to more: (1e3, 1e9), not {sizes}")


def _chart(
    title: str, sizes: tuple[float, float], scale: str, what: str, text: Callable[[float], str]
) -> tuple[Picture, Axes]:
    picture = figure(3.9, title)
    axes = plain(picture.add_subplot())
    axes.set(xscale="log", yscale=scale, xlim=sizes)
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: bytes_text(x)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: text(y)))
    axes.tick_params(which="minor", length=0, labelbottom=False, labelleft=False)
    axes.set_xlabel("size of the tensor on each rank", fontsize=TEXT)
    axes.set_ylabel(what, fontsize=TEXT)
    return picture, axes


def _lines(
    axes: Axes,
    curves: Mapping[str, Curve],
    sizes: tuple[float, float],
    measured: Mapping[str, Points],
    dots: str = "measured",
) -> dict[str, tuple[float, float, str]]:
    """Theory as lines, measurements as dots; a name in both has one colour. Returns x and y of its end, and colour.

    Raises:
        BadInput: if a value has no place on the axes.
    """
    grid = np.geomspace(*sizes, SAMPLES)
    ends = {}
    names = list(dict.fromkeys([*curves, *measured]))
    for name, (colour, dash, marker) in zip(names, lines(len(names)), strict=True):
        if points := [(size, y) for size, y in measured.get(name, ()) if sizes[0] <= size <= sizes[1]]:
            x, y = zip(*points, strict=True)
            _require_values(axes, name, y)
            style = {"marker": marker, "markersize": 5, "linestyle": "none", "markeredgecolor": "white"}
            axes.plot(x, y, color=colour, markeredgewidth=0.6, zorder=4, clip_on=False, **style)
            ends[name] = (x[-1], y[-1], colour)
        if name in curves:
            values = [curves[name](size) for size in grid]
            _require_values(axes, name, values)
            axes.plot(grid, values, color=colour, linestyle=dash, linewidth=1.8, zorder=3)
            ends[name] = (sizes[1], values[-1], colour)
    if measured:
        words = f"lines: theory   dots: {dots}" if curves else f"dots: {dots}"
        axes.text(0.012, 0.975, words, transform=axes.transAxes, va="top", fontsize=SMALL, color=Colour.FAINT)
    return ends


def _require_values(axes: Axes, name: str, values: Sequence[float]) -> None:
    least = 0 if axes.get_yscale() == "log" else -inf
    for value in values:
        if not least < value < inf:
            raise BadInput(f"{name} has {value:g} {axes.get_ylabel()}, which has no place in this chart")


def _names(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Each line's name at its end, pushed apart where several end together; beside the last dot if that is far."""
    to_axes = (axes.transData - axes.transAxes).transform
    at = {name: to_axes((x, y)) for name, (x, y, _) in ends.items()}
    style = {"fontsize": SMALL, "va": "center", "annotation_clip": False, "xycoords": "axes fraction"}
    order = sorted((name for name in at if at[name][0] > 0.95), key=lambda name: at[name][1])
    for name, place in zip(order, _apart([at[name][1] for name in order], 0.062), strict=True):
        leader = {"arrowstyle": "-", "color": ends[name][2], "linewidth": 1.4, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(name, at[name], (1.04, place), textcoords="axes fraction", arrowprops=leader, **style)
    for name in at.keys() - set(order):
        axes.annotate(name, at[name], (6, 0), textcoords="offset points", **style)


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """Sorted values moved as little as needed, so that neighbours are `gap` apart."""
    placed = list(values)
    for _ in range(100):
        for i in range(len(placed) - 1):
            missing = gap - (placed[i + 1] - placed[i])
            if missing > 1e-9:
                placed[i] -= missing / 2
                placed[i + 1] += missing / 2
    return placed


def _crossings(axes: Axes, curves: Mapping[str, Curve], sizes: tuple[float, float]) -> None:
    """A ring at each size where the fastest algorithm changes, and its number, where that lies on no other's."""
    ends = [0.0, 0.0]  # of the last number in each of two rows
    for index, (size, _, _) in enumerate(crossings(curves, sizes)):
        fastest = min(curve(size) for curve in curves.values())
        low = axes.get_ylim()[0]
        axes.plot([size, size], [low, fastest], color=Colour.FAINT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        axes.plot(size, fastest, marker="o", color=Colour.INK, markersize=4, markerfacecolor="white", zorder=6)
        at = np.log(size / sizes[0]) / np.log(sizes[1] / sizes[0])
        left = at > 0.85
        row, begin = index % 2, at - left * NUMBER
        if begin < ends[row]:
            continue
        ends[row] = begin + NUMBER
        place = {
            "xycoords": axes.get_xaxis_transform(),
            "textcoords": "offset points",
            "ha": "right" if left else "left",
        }
        axes.annotate(bytes_text(size), (size, 0.03 + 0.07 * row), (-4 if left else 4, 0), fontsize=SMALL, **place)
