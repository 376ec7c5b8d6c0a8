"""What a plan costs: memory and seconds by part, a map of all plans, and predictions beside what was published."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from reference.errors import BadInput
from reference.planning.accuracy import Accuracy
from reference.planning.constants import of_gpu
from reference.planning.fit import seconds as predicted_seconds
from reference.planning.predict import Prediction
from reference.planning.published import Measurement

from .mesh import AXIS_COLOURS
from .style import (
    SMALL,
    TEXT,
    Colour,
    Picture,
    amount_axis,
    bytes_text,
    figure,
    ink_on,
    lines,
    plain,
    seconds_text,
    time_axis,
    tint,
)

ROOM: Mapping[str, str] = {
    "parameters": "#F0E442",
    "gradients": Colour.WEIGHT_GRADIENT,
    "optimizer": Colour.OPTIMIZER,
    "activations": Colour.FORWARD,
    "made again": tint(Colour.FORWARD, 0.5),
    "logits": "#56B4E9",
    "gathered": Colour.COMMUNICATION,
    "reserve": Colour.IDLE,
}
TIME: Mapping[str, str] = {
    "layers": "#2B2B2B",
    "head": "#6B6B6B",
    "tp": AXIS_COLOURS["tp"],
    "cp": AXIS_COLOURS["cp"],
    "ep": AXIS_COLOURS["ep"],
    "pp": AXIS_COLOURS["pp"],
    "dp": AXIS_COLOURS["dp"],
    "bubble": Colour.IDLE,
    "optimizer": tint(Colour.OPTIMIZER, 0.5),
    "step": "#EEEEEE",
}

NO_ROOM = "None of these fits"


def room(plans: Mapping[str, Prediction], *, title: str = "") -> Picture:
    """Bytes of the fullest rank by part, a bar for each plan, and the GPU's memory as a line.

    Args:
        plans: by name, each a prediction of one layout, all for one kind of GPU.
        title: the finding; by default what fits.

    Raises:
        BadInput: if there is no plan.
    """
    _require(plans)
    limit = next(iter(plans.values())).job.cluster.gpu.memory
    fitting = [name for name, plan in plans.items() if plan.fits]
    picture, axes = _bars({name: plan.room for name, plan in plans.items()}, ROOM, title or _fits(fitting, plans))
    longest = max(float(plan.bytes) for plan in plans.values())
    for row, plan in enumerate(plans.values()):
        over = float(plan.bytes) - limit
        words = bytes_text(float(plan.bytes)) + (f", {bytes_text(over)} too much" if over > 0 else "")
        _say(axes, float(plan.bytes), row, words, longest, bold=over <= 0)
    axes.axvline(limit, color=Colour.ERROR, linewidth=1.4, zorder=5)
    axes.text(limit, -0.62, bytes_text(limit), fontsize=SMALL, color=Colour.ERROR, ha="right", va="bottom")
    axes.set_xlim(0, 1.35 * max(longest, limit))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
    axes.set_xlabel("memory of the fullest rank", fontsize=TEXT, loc="left")
    return picture


def time(plans: Mapping[str, Prediction], *, title: str = "") -> Picture:
    """Seconds of a step by part, a bar for each plan: what is computed, and of all else what is waited for.

    Args:
        plans: by name, each a prediction of one layout.
        title: the finding; by default the fastest of those that fit.

    Raises:
        BadInput: if there is no plan.
    """
    _require(plans)
    fitting = [name for name, plan in plans.items() if plan.fits]
    best = min(fitting, key=lambda name: float(plans[name].seconds), default=None)
    words = f"The shortest step that fits takes {seconds_text(float(plans[best].seconds))}: {best}" if best else NO_ROOM
    picture, axes = _bars({name: plan.time for name, plan in plans.items()}, TIME, title or words)
    longest = max(float(plan.seconds) for plan in plans.values())
    for row, (name, plan) in enumerate(plans.items()):
        said = f"{seconds_text(float(plan.seconds))}, MFU {float(plan.mfu):.0%}{'' if plan.fits else ', does not fit'}"
        _say(axes, float(plan.seconds), row, said, longest, bold=name == best)
    axes.set_xlim(0, (1.3 if len(fitting) == len(plans) else 1.5) * longest)
    time_axis(axes, longest)
    return picture


def _require(plans: Mapping[str, Prediction]) -> None:
    if not plans:
        raise BadInput("there is no plan to draw: give one or more, by name")


def _fits(fitting: Sequence[str], plans: Mapping[str, Prediction]) -> str:
    if not fitting:
        return NO_ROOM
    return "All of these fit" if len(fitting) == len(plans) else f"What fits: {'; '.join(fitting)}"


def _bars(plans: Mapping[str, Mapping[str, np.ndarray]], faces: Mapping[str, str], title: str) -> tuple[Picture, Axes]:
    """A bar for each plan, and a legend of the parts that are large enough to be seen."""
    picture = figure(1.25 + 0.34 * len(plans), title)
    axes = plain(picture.add_subplot())
    axes.grid(False, axis="y")
    for row, parts in enumerate(plans.values()):
        left = 0.0
        for part, face in faces.items():
            size = float(parts[part])
            axes.barh(row, size, 0.66, left, color=face, edgecolor="white", linewidth=0.5, zorder=3)
            left += size
    axes.set_yticks(range(len(plans)), list(plans), fontsize=SMALL)
    axes.set_ylim(len(plans) - 0.4, -0.6)
    name_parts(axes, [{part: float(size) for part, size in parts.items()} for parts in plans.values()], faces, 6)
    return picture, axes


def name_parts(axes: Axes, bars: Sequence[Mapping[str, float]], faces: Mapping[str, str], columns: int) -> None:
    """A legend above: the parts that are large enough to be seen in one of these bars, in so many columns."""
    longest = max(sum(parts.values()) for parts in bars)
    seen = [part for part in faces if any(parts[part] > 0.001 * longest for parts in bars)]
    handles = [Patch(facecolor=faces[part], edgecolor="#999999", linewidth=0.4, label=part) for part in seen]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.04), "ncols": columns, "columnspacing": 1.0}
    axes.legend(handles=handles, frameon=False, fontsize=SMALL, labelcolor=Colour.INK, handlelength=1.1, **place)


_CENTRED = {"ha": "center", "va": "center", "zorder": 4, "clip_on": True}


def _say(axes: Axes, size: float, row: int, words: str, longest: float, bold: bool) -> None:
    look = {"fontsize": SMALL, "color": Colour.INK, "va": "center", "fontweight": "bold" if bold else "normal"}
    axes.text(size + 0.01 * longest, row, words, zorder=6, **look)


def against_published(rows: Sequence[Measurement], *, title: str = "") -> Picture:
    """Predicted over measured seconds of steps, a mark for each and a kind of mark for each source, and the diagonal.

    Args:
        rows: of up to six files.
        title: the finding; by default the mean absolute error of all.

    Raises:
        BadInput: if there is no row.
    """
    if not rows:
        raise BadInput("there is no step to draw: give one or more, such as `measurements()`")
    files = list(dict.fromkeys(row.file for row in rows))
    errors = {file: [_error(row) for row in rows if row.file == file] for file in files}
    every = Accuracy.of([error for of_file in errors.values() for error in of_file])
    picture = figure(
        3.6, title or f"Predicted and measured steps differ by {every.mape:.1%} in the mean of {every.rows}"
    )
    axes = plain(picture.add_subplot())
    took = np.array([row.seconds for row in rows])
    ends = np.array([0.7 * took.min(), 1.5 * took.max()])
    axes.plot(ends, ends, color=Colour.INK, linewidth=1.0, zorder=2)
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color=Colour.IDLE, alpha=0.6, linewidth=0, zorder=1)
    for file, (colour, _, marker) in zip(files, lines(len(files)), strict=True):
        of_file = [row for row in rows if row.file == file]
        said = [row.seconds * (1 + error) for row, error in zip(of_file, errors[file], strict=True)]
        known = Accuracy.of(errors[file])
        label = f"{file.replace('_', ' ')}: {known.mape:.1%}, {known.rows} steps"
        look = {"linestyle": "none", "marker": marker, "markersize": 5, "markeredgecolor": "white", "zorder": 3}
        axes.plot([row.seconds for row in of_file], said, color=colour, markeredgewidth=0.5, label=label, **look)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    axes.set_xlabel("measured seconds of a step; grey: within 10 %", fontsize=TEXT, loc="left")
    axes.set_ylabel("predicted", fontsize=TEXT)
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=Colour.INK, loc="upper left", bbox_to_anchor=(1.01, 1))
    return picture


def _error(row: Measurement) -> float:
    return predicted_seconds(row, of_gpu(row.asked[0].cluster.gpu)) / row.seconds - 1


Cell = tuple[int, int]
"""Ranks along the tensor axis, and along the pipeline."""


def plan_map(best: Mapping[Cell, Prediction | None], *, title: str = "") -> Picture:
    """The fastest plan that fits, for each pair of tensor-parallel ranks and stages; dark where a step is short.

    Args:
        best: by (tp, pp); None where nothing fits, or nothing divides.
        title: the finding; by default the fastest of all.

    Raises:
        BadInput: if no plan fits anywhere.
    """
    found = {cell: plan for cell, plan in best.items() if plan is not None}
    if not found:
        raise BadInput("no plan fits anywhere: take more GPUs, or a smaller model")
    first = min(found, key=lambda cell: float(found[cell].seconds))
    shortest = float(found[first].seconds)
    words = (
        f"tp {first[0]}, pp {first[1]} is fastest: {seconds_text(shortest)}; elsewhere, how much longer a step takes"
    )
    columns, rows = (sorted({cell[place] for cell in best}) for place in (0, 1))
    picture = figure(0.9 + 0.34 * len(rows), title or words)
    axes = plain(picture.add_subplot())
    axes.grid(False)
    for cell, plan in best.items():
        x, y = columns.index(cell[0]), rows.index(cell[1])
        if plan is None:
            axes.text(x, y, "does not fit", fontsize=SMALL, color=Colour.FAINT, **_CENTRED)
            continue
        more = float(plan.seconds) / shortest - 1
        face = tint(Colour.FORWARD, min(0.95, 0.15 + 1.2 * more))
        axes.barh(y, 0.96, 0.92, x - 0.48, color=face, zorder=2)
        said = seconds_text(float(plan.seconds)) if cell == first else f"+{more:.0%}"
        weight = "bold" if cell == first else "normal"
        axes.text(x, y, said, fontsize=SMALL, color=ink_on(face), fontweight=weight, **_CENTRED)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel("tp, tensor-parallel ranks", fontsize=TEXT, loc="left")
    axes.set_ylabel("pp, stages", fontsize=TEXT)
    return picture


FAR = 4.0  # times the shortest step: slower plans are not drawn


def frontier(plans: Sequence[Prediction], *, title: str = "") -> Picture:
    """Plans than which no other is both faster and smaller: seconds over memory, with what each is.

    Raises:
        BadInput: if there is no plan.
    """
    if not plans:
        raise BadInput("there is no plan to draw: nothing fits")
    fastest = min(float(plan.seconds) for plan in plans)
    near = sorted((plan for plan in plans if plan.seconds <= FAR * fastest), key=lambda plan: float(plan.bytes))
    picture = figure(3.0, title or "Less memory costs time: no plan is both faster and smaller than one of these")
    axes = plain(picture.add_subplot())
    sizes, times = [float(plan.bytes) for plan in near], [float(plan.seconds) for plan in near]
    axes.step(sizes, times, where="post", color=Colour.FORWARD, linewidth=1.2, zorder=2)
    axes.plot(sizes, times, "o", color=Colour.FORWARD, markersize=3.5, markeredgewidth=0, zorder=3)
    for at, side, up in ((0, "left", 0), (len(near) - 1, "right", 12)):
        place = {"xytext": (8 if side == "left" else 0, up), "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(str(near[at].layouts), (sizes[at], times[at]), fontsize=SMALL, color=Colour.INK, **place)
    axes.set_ylim(0, 1.15 * max(times))
    axes.margins(x=0.05)
    amount_axis(axes, "", seconds_text)
    axes.set_ylabel("seconds of a step", fontsize=TEXT)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_text(size)))
    axes.set_xlabel("memory of the fullest rank", fontsize=TEXT, loc="left")
    return picture
