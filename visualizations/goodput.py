"""What failures leave of a training's time: over the number of GPUs, by cause, and over the checkpoint interval."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reference.errors import BadInput, require_sizes
from reference.planning import stragglers
from reference.planning.failures import DAY, HOUR, mtbf
from reference.planning.goodput import Reliability, goodput, young
from reference.planning.stragglers import Distribution

from .style import SMALL, TEXT, Colour, Picture, figure, lines, plain

PARTS: Mapping[str, str] = {
    "useful": Colour.FORWARD,
    "stragglers": Colour.WEIGHT_GRADIENT,
    "checkpoints": Colour.COMMUNICATION,
    "rework": Colour.ERROR,
    "detection": Colour.IDLE,
    "restarts": Colour.FAINT,
}
SAMPLES = 400  # points of a line


def over_gpus(
    reliability: Reliability,
    gpus: Sequence[int],
    intervals: Sequence[float] = (HOUR,),
    *,
    imitated: Mapping[int, float] | None = None,
    title: str = "",
) -> Picture:
    """Goodput over the number of GPUs: with the best interval for each number, and with intervals that stay the same.

    Args:
        reliability: its numbers are no columns.
        gpus: from and to, and what lies between if it is to be a mark of the axis.
        intervals: seconds of training between two checkpoints, whatever the number of GPUs.
        imitated: goodput of trainings whose GPUs failed at random, by number of GPUs.
        title: the finding; by default what is left of the largest number's time.

    Raises:
        BadInput: if there is no range of GPUs.
    """
    columns = _columns(gpus)
    curves = {"best interval": None} | {f"every {duration_text(interval)}": interval for interval in intervals}
    picture = figure(3.4, title or finding(reliability, gpus[-1], intervals))
    axes = _chart(picture, gpus)
    for (name, interval), (colour, dash, _) in zip(curves.items(), lines(len(curves)), strict=True):
        useful = goodput(reliability, columns, interval).useful
        axes.plot(columns, useful, color=colour, linestyle=dash, linewidth=1.8, label=name, zorder=3)
    if imitated:
        dots = {"linestyle": "none", "marker": "o", "markersize": 5.5, "markeredgecolor": "white", "zorder": 4}
        axes.plot(*zip(*imitated.items(), strict=True), color=Colour.INK, label="failures at random", **dots)
    axes.set_ylabel("part of the time that is useful", fontsize=TEXT)
    _legend(axes)
    return picture


def parts(
    reliability: Reliability, gpus: Sequence[int], *, times: Distribution | None = None, title: str = ""
) -> Picture:
    """Where the time goes, over the number of GPUs, with the best interval for each; parts stand on each other.

    Args:
        reliability, gpus: as in `over_gpus`.
        times: of a rank for a step, if its stragglers are to be seen.
        title: the finding; by default what takes most.

    Raises:
        BadInput: if there is no range of GPUs.
    """
    columns = _columns(gpus)
    stretch = 1.0 if times is None else stragglers.stretch(columns, times)
    shares = {part: share for part, share in goodput(reliability, columns, None, stretch).parts.items() if share.any()}
    most = max((part for part in shares if part != "useful"), key=lambda part: shares[part][-1])
    useful, lost = (f"{shares[part][-1]:.0%}" for part in ("useful", most))
    said = f"At {gpus[-1]:,} GPUs {useful} of the time is useful; most of the rest is {most}: {lost}"
    picture = figure(3.4, title or said)
    axes = _chart(picture, gpus)
    ordered = [part for part in PARTS if part in shares]
    look = {"colors": [PARTS[part] for part in ordered], "edgecolor": "white", "linewidth": 0.6}
    axes.stackplot(columns, *(shares[part] for part in ordered), labels=ordered, **look)
    axes.set_ylabel("part of the time", fontsize=TEXT)
    _legend(axes, upwards=True)
    return picture


def over_intervals(
    reliability: Reliability, gpus: Sequence[int], intervals: tuple[float, float], *, title: str = ""
) -> Picture:
    """What is lost over the interval between checkpoints: a line for each number of GPUs, its least and Young's marked.

    Args:
        reliability: its numbers are no columns.
        gpus: a line for each.
        intervals: seconds of training between two checkpoints, from and to.
        title: the finding; by default the best intervals.

    Raises:
        BadInput: if there is no number of GPUs, or no range of intervals.
    """
    require_sizes(lines=len(gpus))
    if not 0 < intervals[0] < intervals[1]:
        raise BadInput(f"intervals go from some seconds, above 0, to more, not {intervals}")
    columns = np.geomspace(*intervals, SAMPLES)
    best = [goodput(reliability, n) for n in gpus]
    each = ", ".join(f"{duration_text(float(one.interval))} at {n:,} GPUs" for n, one in zip(gpus, best, strict=True))
    picture = figure(3.4, title or f"Least is lost if training between checkpoints takes {each}")
    axes = plain(picture.add_subplot())
    for n, one, (colour, dash, marker) in zip(gpus, best, lines(len(gpus)), strict=True):
        look = {"color": colour, "zorder": 3}
        lost = 1 - goodput(reliability, n, columns).useful
        axes.plot(columns, lost, linestyle=dash, linewidth=1.8, label=f"{n:,} GPUs", **look)
        axes.plot(one.interval, 1 - one.useful, marker, markersize=8, markeredgecolor="white", **look)
        youngs = young(reliability.checkpoint, mtbf(reliability.gpu_mtbf, n))
        there = 1 - goodput(reliability, n, youngs).useful
        axes.plot(youngs, there, "|", markersize=11, markeredgewidth=1.6, **look)
        place = {"xytext": (0, -15), "textcoords": "offset points", "ha": "center", "fontsize": SMALL}
        axes.annotate(f"{1 - one.useful:.1%}", (float(one.interval), float(1 - one.useful)), **place)
    axes.plot([], [], "|", color=Colour.INK, markersize=11, markeredgewidth=1.6, label="Young's interval")
    axes.set(xscale="log", xlim=intervals, ylim=(min(-0.09, axes.get_ylim()[0]), min(axes.get_ylim()[1], 1)))
    ticks = [tick for tick in (1, 10, 60, 600, HOUR, 10 * HOUR, 4 * DAY) if intervals[0] <= tick <= intervals[1]]
    axes.set_xticks(ticks, [duration_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("training between two checkpoints", fontsize=TEXT, loc="left")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}" if share > -1e-9 else ""))
    axes.set_ylabel("part of the time that is lost", fontsize=TEXT)
    _legend(axes)
    return picture


def finding(reliability: Reliability, gpus: int, intervals: Sequence[float]) -> str:
    """The default title of `over_gpus`."""
    left = f"At {gpus:,} GPUs {goodput(reliability, gpus).useful:.0%} of the time is useful"
    others = [f"{goodput(reliability, gpus, each).useful:.0%} every {duration_text(each)}" for each in intervals]
    return f"{left} with the best interval between checkpoints" + "".join(f", {other}" for other in others)


def duration_text(seconds: float) -> str:
    """A duration for a reader, in seconds, minutes, hours or days."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def _columns(gpus: Sequence[int]) -> np.ndarray:
    if len(gpus) < 2 or not 1 <= gpus[0] < gpus[-1]:
        raise BadInput(f"GPUs go from 1 or more to a larger number, not {list(gpus)}")
    return np.geomspace(gpus[0], gpus[-1], SAMPLES)


def _chart(picture: Picture, gpus: Sequence[int]) -> Axes:
    axes = plain(picture.add_subplot())
    axes.set(xscale="log", xlim=(gpus[0], gpus[-1]), ylim=(0, 1))
    axes.set_xticks(list(gpus), [f"{n:,}" for n in gpus])
    axes.minorticks_off()
    axes.set_xlabel("GPUs", fontsize=TEXT, loc="left")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    return axes


def _legend(axes: Axes, upwards: bool = False) -> None:
    """At the right; `upwards` in the order in which parts stand on each other."""
    handles, names = axes.get_legend_handles_labels()
    order = slice(None, None, -1 if upwards else 1)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "handlelength": 1.6}
    axes.legend(handles[order], names[order], frameon=False, fontsize=SMALL, labelcolor=Colour.INK, **place)
