"""Curves: one number over another. Lines for a formula, or for what happens step by step; dots for measurements."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import count
from math import log2, log10
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from reference.errors import BadInput

from . import style
from .style import SMALL, TEXT, Colour, Picture, figure, plain, width_of

Points = Sequence[tuple[float, float]]
HEIGHT = 3.4  # inches
WIDE = 6.0  # inches of the x axis, beside short names
POWERS_OF_TWO = tuple(2.0**k for k in range(-60, 80))


class Scale(StrEnum):
    """How the axes are divided."""

    LINEAR = "linear"
    LOG = "log"  # both axes; x is marked at powers of two, as many as have room
    LOG_Y = "log y"


def draw(
    lines: Mapping[str, Points],
    *,
    title: str,
    x: str,
    y: str,
    dots: Mapping[str, Points] | None = None,
    scale: Scale = Scale.LINEAR,
    text: Callable[[float], str] = "{:g}".format,
    limit: tuple[str, float] | None = None,
    note: str = "",
) -> Picture:
    """Lines and dots on one pair of axes; a name in both has one colour.

    Args:
        lines: (x, y) by name, in order of x.
        title: the finding.
        x, y: what the axes hold, with the unit.
        dots: (x, y) by name.
        scale: of the axes.
        text: how to write a number of the y axis.
        limit: name and height of a level to hold the others against; it stands among the names of the lines.
        note: what lines and dots are, where that is not plain: "lines: formula   dots: measured".

    Raises:
        BadInput: if there is no point, or none that has a place on the axes.
    """
    dots = dots or {}
    points = [point for each in (*lines.values(), *dots.values()) for point in each]
    if not points:
        raise BadInput("there is nothing to draw: no line and no dots have a point")
    if scale is not Scale.LINEAR and not any(height > 0 for _, height in points):
        raise BadInput("there is nothing to draw: y is 0 or less, and an axis of powers has no place for that")
    picture = figure(HEIGHT, title)
    axes = plain(picture.add_subplot())
    names = list(dict.fromkeys([*lines, *dots]))
    marks = {}
    for name, look in zip(names, style.lines(len(names)), strict=True):
        if drawn := _line(axes, look, lines.get(name, ()), dots.get(name, ())):
            marks[name] = drawn[0]
    if limit:
        name, level = limit
        marks[f"{name}: {text(level)}"] = axes.axhline(level, color=Colour.INK, linewidth=1, zorder=2)
    _divide(axes, scale, text)
    beside = ("axes fraction", axes.set_xlabel(x, fontsize=TEXT, loc="left"))
    axes.annotate(note, (1, 0), xycoords=beside, ha="right", fontsize=SMALL, color=Colour.FAINT)
    axes.set_ylabel(y, fontsize=TEXT)
    look = {"frameon": False, "fontsize": SMALL, "labelcolor": Colour.INK, "loc": "upper left"}
    axes.legend(marks.values(), marks.keys(), bbox_to_anchor=(1.01, 1), **look)
    return picture


def _line(axes: Axes, look: tuple[str, Any, str], line: Points, dots: Points) -> list[Artist]:
    """What is drawn: the line, of which one point is a mark, and the dots."""
    colour, dash, marker = look
    mark = {"marker": marker, "markersize": 5.5, "linestyle": "none", "markeredgecolor": "white"}
    drawn = []
    if line:
        stroke = mark if len(line) == 1 else {"linestyle": dash, "linewidth": 1.7}
        drawn += axes.plot(*zip(*line, strict=True), color=colour, zorder=3, **stroke)
    if dots:
        drawn += axes.plot(*zip(*dots, strict=True), color=colour, zorder=4, clip_on=False, **mark)
    return drawn


def _divide(axes: Axes, scale: Scale, text: Callable[[float], str]) -> None:
    if scale is not Scale.LINEAR:
        axes.set_yscale("log")
    if scale is Scale.LOG:
        axes.set_xscale("log")
        _powers(axes)
    else:
        axes.margins(x=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if scale is not Scale.LINEAR:
        axes.minorticks_off()
        axes.yaxis.set_major_locator(_amounts(*axes.get_ylim()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _written(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _powers(axes: Axes) -> None:
    """Mark x at powers of two: all of them, or each second, third, ... where their numbers would meet."""
    low, high = axes.get_xlim()
    inside = [power for power in POWERS_OF_TWO if low <= power <= high]
    if len(inside) < 2:
        return axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    widths, octave = [width_of(_written(power), SMALL, "normal") for power in inside], WIDE / log2(high / low)
    fits = (k for k in count(1) if all((a + b) / 2 < k * octave for a, b in zip(widths, widths[k:], strict=False)))
    axes.set_xticks(inside[:: next(fits)])


def _amounts(low: float, high: float) -> LogLocator:
    """Powers of ten, and where these are few, 2, 5 or each digit times them."""
    decades = log10(high / low)
    return LogLocator(subs=(1,) if decades > 3 else (1, 2, 5) if decades > 1 else range(1, 10))


def _written(value: float) -> str:
    """1,048,576 as it is; a part of one, such as 0.25, with its digits."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
