"""Goodput over the interval between checkpoints: dots are measured, the line and hollow marks are the formula.

The line has the mean costs of all runs. On a busy machine a checkpoint and a recovery take longer in one run than in
another: a hollow mark has the costs of its own run, and may be held against its dot.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter

from reference.errors import BadInput
from reference.planning.goodput import best_interval, daly, goodput, young
from reference.resilience.lab.measured_goodput import MeasuredGoodput, costs

from .goodput import SAMPLES, duration_text
from .style import SMALL, TEXT, Colour, Picture, figure, lines, plain


def draw(rows: Sequence[MeasuredGoodput], *, title: str = "") -> Picture:
    """Trainings from disk, one dot for each interval, beside Daly's formula; elastic ones with marks of their own.

    Args:
        rows: all with the same mean time between failures. The formula gets the means of their checkpoints and
            recoveries.
        title: the finding; by default the best interval, as measured and by formula.

    Raises:
        BadInput: if fewer than two are from disk, or failures come at several rates.
    """
    disk = sorted((row for row in rows if row.way == "from disk"), key=lambda row: row.interval)
    if len(disk) < 2 or len({row.between for row in rows}) > 1:
        raise BadInput("a curve has two intervals or more, under one rate of failures")
    cost = costs(disk)
    curve = np.geomspace(disk[0].interval / 1.5, disk[-1].interval * 1.5, SAMPLES)
    picture = figure(3.5, title or finding(disk))
    axes = plain(picture.add_subplot())
    (blue, dash, dot), (orange, _, square) = lines(2)
    useful = goodput(cost, 1, curve).useful
    axes.plot(curve, useful, color=blue, linestyle=dash, linewidth=1.8, label="formula, with mean costs", zorder=2)
    by_itself = [float(goodput(costs([row]), 1, row.interval).useful) for row in disk]
    hollow = {"linestyle": "none", "marker": dot, "markersize": 8, "markerfacecolor": "none", "zorder": 5}
    label = "formula, with the costs of this run"
    axes.plot([row.interval for row in disk], by_itself, color=Colour.INK, label=label, **hollow)
    look = {"linestyle": "none", "markersize": 7, "markeredgecolor": "white", "zorder": 4}
    measured = [row.interval for row in disk], [row.useful for row in disk]
    axes.plot(*measured, marker=dot, color=blue, label="from disk, measured", **look)
    elastic = [row for row in rows if row.way == "elastic"]
    if elastic:
        places = [row.interval for row in elastic], [row.useful for row in elastic]
        axes.plot(*places, marker=square, color=orange, label="elastic, measured", **look)
    for name, interval, shape in (
        ("Young", float(young(cost.checkpoint, cost.gpu_mtbf)), "|"),
        ("Daly", float(daly(cost.checkpoint, cost.gpu_mtbf)), "x"),
    ):
        there = float(goodput(cost, 1, interval).useful)
        mark = {"color": Colour.INK, "markersize": 11, "markeredgewidth": 1.6, "linestyle": "none", "zorder": 5}
        axes.plot(interval, there, marker=shape, label=f"{name}: {interval:.2g} s", **mark)
    axes.set(xscale="log", ylim=(0, 1))
    ticks = [tick for tick in (0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if curve[0] <= tick <= curve[-1]]
    axes.set_xticks(ticks, [duration_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("training between two checkpoints, or copies", fontsize=TEXT, loc="left")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_ylabel("part of the time that is useful", fontsize=TEXT)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=SMALL,
        labelcolor=Colour.INK,
        handlelength=1.6,
    )
    return picture


def finding(disk: Sequence[MeasuredGoodput]) -> str:
    """The default title."""
    best, cost = max(disk, key=lambda row: row.useful), costs(disk)
    by_formula = float(best_interval(cost.checkpoint, cost.gpu_mtbf))
    return (
        f"Most is left with a checkpoint every {best.interval:.2g} s: {best.useful:.0%}; by the formula every "
        f"{by_formula:.2g} s: {float(goodput(cost, 1).useful):.0%}"
    )
