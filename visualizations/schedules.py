"""Which rank computes what when: the chart of a pipeline, with a lane for each rank and a box for each action.

The same picture for a plan, a simulation and a run. The number in a box is the micro-batch. Where a rank has several
stages, those of later numbers are lighter. A whole backward is green with a strip of the dark colour of weight
gradients, because it makes both; where it is split, each half has a box of its own.

Grey is the bubble, exactly: ranks that do not wait for each other between steps can begin the next one `longest` after
this one. So each lane has as much time for a step, of which grey is what it does not compute; white, before or after
it, is the time of other steps.
"""

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Kind
from reference.pipeline_parallel.simulate import Simulation

from .schedule_steps import Plan, chunks_of, finding, finding_of, held, number, peaks, simulated, window
from .style import (
    SMALL,
    TEXT,
    WIDTH,
    Colour,
    Picture,
    count_axis,
    figure,
    fitted,
    ink_on,
    lanes,
    legend_below,
    time_axis,
    tint,
)

FACES: Mapping[Kind, Colour] = {
    Kind.FORWARD: Colour.FORWARD,
    Kind.BACKWARD: Colour.BACKWARD,
    Kind.INPUT: Colour.BACKWARD,
    Kind.WEIGHT: Colour.WEIGHT_GRADIENT,
}
WORDS: Mapping[Kind, str] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "input gradient",
    Kind.WEIGHT: "weight gradient",
}
HALF, STRIP = 0.42, 0.2  # half of a lane's height; the part of it that says that a backward makes weight gradients too
WIDE, GAP, HIGH = 0.64, 0.04, 0.85  # of a digit, by its size: with the gap to the next; what of it may be lost; a line
SIDES, NAME = 1.15, 3.2  # inches: beside the lanes; for the name of a chart


def draw(plan: Plan, *, title: str = "", unit: str = "", activations: bool = False) -> Picture:
    """A lane for each rank, rank 0 on top.

    Args:
        plan: a schedule is drawn with F = I = W = 1, of all layers of a rank.
        title: the finding; by default the bubble, and what a rank holds.
        unit: of time: "s", or a word such as "F". By default that of the step; a run is in seconds.
        activations: show below how many activations each rank holds.
    """
    step = simulated(plan)
    lane = _lane(step)
    heights = [lane * step.schedule.ranks] + [_flat(step) * step.schedule.ranks] * activations
    picture = figure(sum(heights) + 0.95 + 0.3 * activations, title or finding(step))
    axes = picture.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _lanes(axes[0], step, step.seconds)
    if activations:
        _held(axes[1], step)
    else:
        _column(axes[0], peaks(step), lane, "holds")
    _time(axes[-1], step.seconds, unit or step.unit)
    _legend(axes[-1], [step])
    return picture


def compare(plans: Mapping[str, Plan], *, title: str = "", unit: str = "") -> Picture:
    """Several charts, one below the other, on the same axis of time.

    Args:
        plans: by name.
        title: the finding; by default which has the least bubble, and which holds least.
        unit: of time, as for `draw`; of all alike.

    Raises:
        BadInput: if there is nothing to compare, or if times are in different units.
    """
    steps = {name: simulated(plan) for name, plan in plans.items()}
    units = {unit} if unit else {step.unit for step in steps.values()}
    if len(units) != 1:
        raise BadInput(f"charts on one axis have one unit of time, and these have {sorted(units) or 'none'}")
    end = max(step.seconds for step in steps.values())
    heights = [_lane(step, len(steps)) * step.schedule.ranks for step in steps.values()]
    picture = figure(sum(heights) + 0.36 * len(steps) + 0.75, title or finding_of(steps))
    every = picture.subplots(len(steps), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, step) in zip(every, steps.items(), strict=True):
        _lanes(axes, step, end, len(steps))
        said = f"{finding(step)[0].lower()}{finding(step)[1:]}"
        words = f"{fitted(name, NAME)}: {said}"
        axes.set_title(words, fontsize=TEXT, color=Colour.INK, loc="left", pad=3)
    _time(every[-1], end, *units)
    _legend(every[-1], list(steps.values()))
    return picture


def _lane(step: Simulation, charts: int = 1) -> float:
    """Inches for a rank, where so many charts share a picture."""
    return min(0.34 if charts == 1 else 0.27, 5.4 / step.schedule.ranks / charts**0.5)


def _flat(step: Simulation) -> float:
    """Inches for the activations of a rank."""
    return min(0.8 * _lane(step), 2.6 / step.schedule.ranks)


def _lanes(axes: Axes, step: Simulation, end: float, charts: int = 1) -> None:
    """The lanes of a chart, from 0 to `end`."""
    _ranks(axes, step.schedule.ranks, _lane(step, charts))
    axes.set(xlim=(0, end), ylim=(step.schedule.ranks - 0.45, -0.55))
    inches = (WIDTH - SIDES) / end
    _boxes(axes, [window(line, step) for line in step.spans], range(step.schedule.ranks), Colour.IDLE, 0)
    for kind in Kind:
        _actions(axes, step, kind, inches)
    _numbers(axes, step, inches, _lane(step, charts))


def _ranks(axes: Axes, ranks: int, lane: float) -> None:
    """Lanes, and names of as many as there is room for."""
    every = next(n for n in count(1) if n * lane >= 0.2 - 0.06 * (n == 1) and n & (n - 1) == 0)
    names = {rank: f"rank {rank}" for rank in range(0, ranks, every)}
    lanes(axes, names)


def _actions(axes: Axes, step: Simulation, kind: Kind, inches: float) -> None:
    """Boxes of one kind, by how many stages of smaller number their rank has."""
    chunks = chunks_of(step.schedule)
    for chunk in sorted(set(chunks.values())):
        here = [
            (rank, span)
            for rank, line in enumerate(step.spans)
            for span in line
            if span.action.kind is kind and chunks[span.action.stage] == chunk
        ]
        if not here:
            continue
        times, ranks = [(span.begin, span.end) for _, span in here], [rank for rank, _ in here]
        width = np.median([(end - begin) * inches for begin, end in times])
        edge = min(0.7, 12 * max(0.0, float(width) - 0.02))
        _boxes(axes, times, ranks, shade(kind, chunk, max(chunks.values()) + 1), edge)
        if kind is Kind.BACKWARD:
            strip = shade(Kind.WEIGHT, chunk, max(chunks.values()) + 1)
            _boxes(axes, times, ranks, strip, edge, top=HALF - STRIP * 2 * HALF)


def shade(kind: Kind, chunk: int, chunks: int) -> str:
    """The colour of an action on a rank's stage number `chunk` of `chunks`: lighter from stage to stage."""
    return tint(FACES[kind], 0.48 * chunk / max(chunks - 1, 1))


def _boxes(
    axes: Axes,
    times: Sequence[tuple[float, float]],
    ranks: Sequence[int],
    face: str,
    edge: float,
    top: float = -HALF,
) -> None:
    """Rectangles of one colour, with white edges of so many points."""
    (begin, end), lane = np.array(times).T, np.array(ranks)
    x, y = np.stack([begin, end, end, begin], 1), np.stack([lane + top] * 2 + [lane + HALF] * 2, 1)
    look = {"facecolor": face, "edgecolor": "white", "linewidth": edge, "zorder": 1}
    axes.add_collection(PolyCollection(np.stack([x, y], 2), **look), autolim=False)


ENOUGH = 0.9  # of the boxes must have room for their numbers, or there are none


def _numbers(axes: Axes, step: Simulation, inches: float, lane: float) -> None:
    """Micro-batches, if most boxes have room for them: digits side by side, or else one below the other."""
    spans = [(rank, span) for rank, line in enumerate(step.spans) for span in line]
    digits = np.array([len(str(span.action.micro_batch)) for _, span in spans])
    width = np.array([span.end - span.begin for _, span in spans]) * inches * 72 - 0.7  # points, without edges
    height = lane * 2 * HALF * (1 - STRIP) * 72
    beside = np.minimum(width / (WIDE * digits - GAP), height)  # the largest size that fits
    below = np.minimum(width / (WIDE - GAP), height / HIGH / digits)
    size = SMALL
    if np.mean((beside >= size) | (below >= size)) < ENOUGH:
        return
    chunks = chunks_of(step.schedule)
    inks = {(kind, c): ink_on(shade(kind, c, max(chunks.values()) + 1)) for kind in Kind for c in chunks.values()}
    for (rank, (action, begin, end)), one_line, fits in zip(spans, beside >= size, below >= size, strict=True):
        if one_line or fits:
            words = ("" if one_line else "\n").join(str(action.micro_batch))
            y = rank - (STRIP * HALF if action.kind is Kind.BACKWARD else 0)
            look = {"color": inks[action.kind, chunks[action.stage]], "fontsize": size, "linespacing": HIGH}
            look["in_layout"] = False  # it lies within its box: a thousand of them need no place found
            axes.text((begin + end) / 2, y, words, ha="center", va="center_baseline", clip_on=True, **look)


def _column(axes: Axes, values: Sequence[float], lane: float, head: str) -> None:
    """A number at the end of each lane, where there is room, and a word above them."""
    if lane < 0.13 or not any(values):
        return
    style = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": SMALL, "color": Colour.FAINT}
    for y, words in [(-0.5 - 0.09 / lane, head), *enumerate(map(number, values))]:
        axes.text(1.008, y, words, **style)


def _held(axes: Axes, step: Simulation) -> None:
    """Below the lanes, in the same order: how many activations each rank holds, all on the same scale."""
    ranks, most = step.schedule.ranks, max(peaks(step)) or 1
    _ranks(axes, ranks, _flat(step))
    axes.set_ylim(ranks - 0.45, -0.55)
    for rank, (moments, counts) in enumerate(held(step)):
        floor = rank + HALF
        tops = [floor - 2 * HALF * count / most for count in [*counts, counts[-1]]]
        look = {"facecolor": Colour.FORWARD, "linewidth": 0, "step": "post"}
        axes.fill_between([*moments, step.seconds], tops, floor, **look)
        axes.axhline(floor, color=Colour.LINE, linewidth=0.5)
    axes.set_title("activations that each rank holds", fontsize=TEXT, color=Colour.INK, loc="left", pad=3)
    _column(axes, peaks(step), _flat(step), "most")


def _time(axes: Axes, end: float, unit: str) -> None:
    """Words below the axis of time."""
    if unit == "s":
        return time_axis(axes, end)
    count_axis(axes, unit)


def _legend(axes: Axes, steps: Sequence[Simulation]) -> None:
    """What the colours say, of those that are there."""
    seen = {span.action.kind for step in steps for line in step.spans for span in line}
    whole = Patch(facecolor=FACES[Kind.BACKWARD]), Patch(facecolor=FACES[Kind.WEIGHT])
    marks = {WORDS[k]: whole if k is Kind.BACKWARD else Patch(facecolor=FACES[k]) for k in Kind if k in seen}
    if any(step.bubble_rate > 0 for step in steps):
        marks["waits"] = Patch(facecolor=Colour.IDLE)
    if any(len(set(step.schedule.placement)) < step.schedule.stages for step in steps):
        marks["later stages"] = tuple(Patch(facecolor=shade(k, 1, 2)) for k in Kind if k in seen)[:3]
    if any(step.longest < step.seconds * (1 - 1e-6) for step in steps):
        marks["other steps"] = Patch(facecolor="white", edgecolor=Colour.LINE, linewidth=0.6)
    legend_below(axes, marks, spacing=1.2)
