"""What a step costs for each way to split ranks, by the formulas of `reference.composition.ptd_p`."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from reference.composition.lab.published import Row
from reference.composition.ptd_p import Machine, Split, Transformer, memory_bytes, parts, rank_flops
from reference.errors import BadInput

from .mesh import AXIS_COLOURS
from .style import LINES, SMALL, TEXT, Colour, Picture, bytes_text, figure, lines, plain, seconds_text, time_axis

PARTS: Mapping[str, str] = {
    "computing": "#2B2B2B",  # darker than any axis, in greyscale too
    "tensor": AXIS_COLOURS["tensor"],
    "pipe": AXIS_COLOURS["pipe"],
    "data": AXIS_COLOURS["data"],
    "bubble": Colour.IDLE,
}


def seconds(model: Transformer, splits: Sequence[Split], machine: Machine, *, title: str = "") -> Picture:
    """Where the seconds of a step go, a bar for each split; the fastest that fits in bold, what doesn't fit faint.

    Args:
        model, machine: what is trained on what.
        splits: of the same batch.
        title: the finding; by default the fastest split.

    Raises:
        BadInput: if there is no split.
    """
    if not splits:
        raise BadInput("there is no split to draw: give one or more")
    fits = [memory_bytes(model, split) <= machine.memory for split in splits]
    each = [parts(model, split, machine) for split in splits]
    totals = [sum(one.values()) for one in each]
    best = min((total, number) for number, total in enumerate(totals) if fits[number])[1] if any(fits) else None
    picture = figure(0.75 + 0.3 * len(splits), title or finding(splits, totals, best))
    axes = plain(picture.add_subplot())
    axes.grid(False, axis="y")
    for row, (split, one) in enumerate(zip(splits, each, strict=True)):
        _bar(axes, row, one, fits[row])
        speed = rank_flops(model, split, machine) / 1e12
        room = "" if fits[row] else f", needs {bytes_text(memory_bytes(model, split))}"
        weight = "bold" if row == best else "normal"
        words = {"fontsize": SMALL, "color": Colour.INK, "fontweight": weight, "va": "center"}
        axes.text(totals[row] + 0.01 * max(totals), row, f"{speed:.0f} TFLOP/s{room}", **words)
    axes.set_yticks(range(len(splits)), [str(split) for split in splits], fontsize=SMALL)
    axes.set(ylim=(len(splits) - 0.4, -0.6), xlim=(0, 1.22 * max(totals)))
    time_axis(axes, max(totals))
    legend = [Patch(facecolor=colour, label=name) for name, colour in PARTS.items()]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 5, "handlelength": 1.2, "borderpad": 0.2}
    axes.legend(handles=legend, frameon=False, fontsize=SMALL, labelcolor=Colour.INK, **place)
    return picture


def finding(splits: Sequence[Split], totals: Sequence[float], best: int | None) -> str:
    """The default title: the fastest split, and how much longer the slowest takes."""
    if best is None:
        return "None of these fits"
    slowest = max(totals) / totals[best]
    return f"A step takes {seconds_text(totals[best])} with {splits[best]}, and up to {slowest:.1f} times that"


def _bar(axes: Axes, row: int, one: Mapping[str, float], fits: bool) -> None:
    left = 0.0
    for name, colour in PARTS.items():
        style = {"height": 0.66, "color": colour, "edgecolor": "white", "linewidth": 0.5, "alpha": 1 if fits else 0.3}
        axes.barh(row, one[name], left=left, **style)
        left += one[name]


def micro_batches(
    model: Transformer, curves: Mapping[str, Sequence[Split]], machine: Machine, *, title: str
) -> Picture:
    """Speed over the size of a micro-batch: a line for each family of splits, its best marked."""
    picture = figure(3.0, title)
    axes = plain(picture.add_subplot())
    for (name, splits), (colour, dash, marker) in zip(curves.items(), lines(len(curves)), strict=True):
        points = [(split.micro_batch, rank_flops(model, split, machine) / 1e12) for split in splits]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, linewidth=1.7, label=name)
        top = max(points, key=lambda point: point[1])
        axes.plot(*top, marker, color=colour, markersize=8, markeredgecolor="white")
        place = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center", "zorder": 5}
        axes.annotate(f"b = {top[0]}", top, fontsize=SMALL, bbox={"facecolor": "white", "lw": 0, "pad": 0.5}, **place)
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.margins(y=0.14)
    axes.set_xlabel("b, windows in a micro-batch", fontsize=TEXT, loc="left")
    axes.set_ylabel("TFLOP/s of a rank", fontsize=TEXT)
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=Colour.INK, loc="upper left", bbox_to_anchor=(1.01, 1))
    return picture


def published(rows: Sequence[Row], machine: Machine, *, title: str) -> Picture:
    """What the formulas say, a line, and what was measured, dots: speed over the size of the model."""
    picture = figure(3.0, title)
    axes = plain(picture.add_subplot())
    sizes = [1e9 * row.billions for row in rows]
    said = [rank_flops(row.model, row.split(), machine) / 1e12 for row in rows]
    axes.plot(sizes, said, color=LINES[0][0], linewidth=1.7, label="formulas")
    dots = {"linestyle": "none", "marker": "o", "markersize": 6, "markeredgecolor": "white", "zorder": 4}
    axes.plot(sizes, [row.measured / 1e12 for row in rows], color=Colour.INK, label="measured", **dots)
    for row, size in zip(rows, sizes, strict=True):
        label = f"{row.ranks}"
        place = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center"}
        axes.annotate(label, (size, row.measured / 1e12), fontsize=SMALL, color=Colour.FAINT, **place)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([1e9, 1e10, 1e11, 1e12], ["1 billion", "10 billion", "100 billion", "1000 billion"])
    axes.set_ylim(0, 1.15 * max(row.measured for row in rows) / 1e12)
    axes.set_xlabel("parameters; below the dots, how many A100s", fontsize=TEXT, loc="left")
    axes.set_ylabel("TFLOP/s of a rank", fontsize=TEXT)
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=Colour.INK, loc="upper left", bbox_to_anchor=(1.01, 1))
    return picture
