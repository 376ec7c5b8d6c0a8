"""Pipelines that never flush: which weights each box of the chart sees, and what late gradients cost.

A box says the micro-batch, and below it the version of its stage's weights that it sees: how many updates they have
had. A purple bar is an update. Where backward goes through other weights than its forward did, the version stands out.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from reference.errors import BadInput, require_sizes
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.simulate import Simulation, simulate
from reference.zero_bubble.lab.convergence import Curve
from reference.zero_bubble.methods import Method
from reference.zero_bubble.versions import Seen, kept

from .style import SMALL, TEXT, Colour, Picture, figure, ink_on, lanes, lines, plain

LANE, HALF = 0.33, 0.44  # inches of a lane; half of a box, of the lane
HEAD = 0.4  # inches above each chart


def versions(runs: Sequence[tuple[Method, int]], p: int = 4, until: float = 33.0, *, title: str = "") -> Picture:
    """A chart for each method: how its run begins, where a backward takes twice as long as a forward.

    Args:
        runs: methods, each with m, the micro-batches in an update.
        p: stages, one on each rank.
        until: when the charts end, in the time of a forward.
        title: the finding; by default how many versions are kept.

    Raises:
        BadInput: if there is no method, or no stage, or no micro-batch in an update.
    """
    require_sizes(methods=len(runs), p=p, m=min((m for _, m in runs), default=1))
    picture = figure((LANE * p + HEAD) * len(runs) + 0.75, title or finding(runs, p))
    every = picture.subplots(len(runs), sharex=True, squeeze=False)[:, 0]
    for axes, (method, m) in zip(every, runs, strict=True):
        schedule = method.order(p, m, updates=math.ceil(until / 3 / m) + p)
        axes.set(xlim=(0, until), ylim=(p - 0.5, -0.5))
        _lanes(axes, simulate(schedule), method.seen(schedule, m), m, until)
        counted = "each micro-batch" if m == 1 else f"{m} micro-batches"
        axes.set_title(f"{method.name}: an update after {counted}", fontsize=TEXT, loc="left", pad=3)
    every[-1].set_xlabel("time (F)", fontsize=TEXT, loc="left")
    _legend(every[-1])
    return picture


def finding(runs: Sequence[tuple[Method, int]], p: int) -> str:
    """The default title: what the first stage keeps."""
    keeps = [f"{method.versions(p, m, 0):.0f} in {method.name}" for method, m in runs]
    return f"Versions of its weights that the first of {p} stages keeps: {', '.join(keeps)}"


def _lanes(axes: Axes, step: Simulation, seen: Seen, batch: int, until: float) -> None:
    lanes(axes, {rank: f"stage {rank}" for rank in range(step.schedule.ranks)}).grid(False)
    held = kept(step.schedule, batch, seen)
    for lane, line in enumerate(step.spans):
        axes.add_patch(Rectangle((0, lane - HALF), until, 2 * HALF, facecolor=Colour.IDLE, zorder=0.5))
        for action, begin, end in line:
            if begin < until:
                _box(axes, lane, begin, end, action, seen)
        ends = [end for action, _, end in line if action.kind is Kind.BACKWARD]
        for end in ends[batch - 1 :: batch]:
            axes.plot([end, end], [lane - HALF, lane + HALF], color=Colour.OPTIMIZER, linewidth=3, zorder=3)
        words = {"fontsize": SMALL, "color": Colour.FAINT, "va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(1.01, lane, f"keeps {max(len(held[action]) for action in step.schedule.lines[lane])}", **words)


def _box(axes: Axes, lane: int, begin: float, end: float, action: Action, seen: Seen) -> None:
    is_forward = action.kind is Kind.FORWARD
    face = Colour.FORWARD if is_forward else Colour.BACKWARD
    look = {"facecolor": face, "edgecolor": "white", "linewidth": 0.7, "zorder": 1}
    axes.add_patch(Rectangle((begin, lane - HALF), end - begin, 2 * HALF, **look))
    words = {"ha": "center", "va": "center_baseline", "color": ink_on(face), "zorder": 4, "clip_on": True}
    if end > axes.get_xlim()[1]:
        return  # a box that the chart cuts off has no room for words
    axes.text((begin + end) / 2, lane - 0.2, str(action.micro_batch), fontsize=SMALL, **words)
    differs = seen[action] != seen[action._replace(kind=Kind.FORWARD)]
    frame = {"boxstyle": "round,pad=0.12", "facecolor": Colour.ERROR, "edgecolor": "none"} if differs else None
    version = f"v{seen[action]}"
    axes.text((begin + end) / 2, lane + 0.2, version, fontsize=SMALL, fontweight="bold", bbox=frame, **words)


def _legend(axes: Axes) -> None:
    patches = [
        Patch(color=Colour.FORWARD, label="forward"),
        Patch(color=Colour.BACKWARD, label="backward"),
        Patch(color=Colour.OPTIMIZER, label="update"),
        Patch(color=Colour.ERROR, label="other weights than forward saw"),
        Patch(color=Colour.IDLE, label="waits"),
    ]
    place = {"loc": "upper right", "bbox_to_anchor": (1.0, -0.24), "ncols": 5}
    axes.legend(handles=patches, frameon=False, fontsize=SMALL, handlelength=1.2, columnspacing=1.2, **place)


def convergence(curves: Sequence[Curve], *, title: str = "", mean: int = 10) -> Picture:
    """Loss over updates, and the same over the time that pipelines would take.

    Args:
        curves: of the same training by several methods.
        title: the finding; by default where the best stand.
        mean: each point is the mean of so many batches.

    Raises:
        BadInput: if there is no curve, if there are fewer updates than that, or if a training has diverged.
    """
    require_sizes(curves=len(curves), mean=mean)
    for curve in curves:
        if lost := [update for update, loss in enumerate(curve.losses) if not math.isfinite(loss)]:
            raise BadInput(f"{curve.method.name} has diverged: update {lost[0]} has no loss; take a lower rate")
    if (fewest := min(len(curve.losses) for curve in curves)) < mean:
        raise BadInput(f"{fewest} updates have no mean of {mean}: draw means of fewer")
    picture = figure(3.3, title or _standings(curves, mean))
    left, right = picture.subplots(1, 2, sharey=True)
    for (colour, dash, _), curve in zip(lines(len(curves)), curves, strict=True):
        losses = smooth(curve, mean)
        look = {"color": colour, "linestyle": dash, "linewidth": 1.6, "label": curve.method.name}
        left.plot(range(mean, len(curve.losses) + 1), losses, **look)
        right.plot(curve.update_times[mean - 1 :], losses, **look)
    for axes, words in ((left, "updates"), (right, "time (forward of a batch through a stage)")):
        plain(axes).set_xlabel(words, fontsize=TEXT, loc="left")
        axes.set_xlim(left=0)
    left.set_ylim(top=max(means[len(means) // 8] for means in (smooth(curve, mean) for curve in curves)))
    left.set_ylabel("loss (nats per byte)", fontsize=TEXT)
    note = {"fontsize": SMALL, "color": Colour.FAINT, "transform": left.transAxes, "ha": "right", "va": "top"}
    left.text(0.99, 0.975, f"means of {mean} updates", **note)
    right.axvline(_end(curves), color=Colour.INK, linewidth=1, zorder=0)
    place = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": SMALL, "color": Colour.INK}
    right.annotate("the first has finished", (_end(curves), 0), xycoords=right.get_xaxis_transform(), **place)
    right.legend(frameon=False, fontsize=SMALL, labelcolor=Colour.INK)
    return picture


def smooth(curve: Curve, mean: int) -> list[float]:
    """Means of so many losses, from the first for which there are enough."""
    return [sum(curve.losses[t - mean : t]) / mean for t in range(mean, len(curve.losses) + 1)]


def _end(curves: Sequence[Curve]) -> float:
    """When the first of them has finished."""
    return min(curve.update_times[-1] for curve in curves)


def _standings(curves: Sequence[Curve], mean: int) -> str:
    """Which is best after as many updates, and which after as much time."""
    end = _end(curves)
    last = {curve.method.name: smooth(curve, mean)[-1] for curve in curves}
    then = {
        curve.method.name: smooth(curve, mean)[bisect_right(curve.update_times, end) - mean]
        for curve in curves
        if bisect_right(curve.update_times, end) >= mean
    }
    by_updates, by_time = (min(found, key=found.__getitem__) for found in (last, then))
    return (
        f"After as many updates, {by_updates} is best ({last[by_updates]:.2f}); "
        f"after as much time, {by_time} ({then[by_time]:.2f})"
    )
