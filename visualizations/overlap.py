"""What hides behind what: for each rank a lane of what it computes, and below it one for each kind of collective.

Drawn from `reference.trace.activity`: forward is blue, backward green (gradients of weights dark teal, where they are
distinguished), the optimizer purple, communication orange. What is orange under another colour costs nothing; what is
orange under white is what one waits for.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from reference.errors import BadInput
from reference.trace.activity import Activity, Doing

from .style import (
    SMALL,
    WIDTH,
    Colour,
    Picture,
    bytes_text,
    figure,
    fitted,
    ink_on,
    lanes,
    legend_below,
    seconds_text,
    time_axis,
    write,
)

FACES: Mapping[Doing, Colour] = {
    Doing.FORWARD: Colour.FORWARD,
    Doing.BACKWARD: Colour.BACKWARD,
    Doing.WEIGHT_GRADIENT: Colour.WEIGHT_GRADIENT,
    Doing.OPTIMIZER: Colour.OPTIMIZER,
    Doing.COMMUNICATION: Colour.COMMUNICATION,
}
LANE, NAME = 0.27, 1.8  # inches: a lane; for its name


def draw(
    ranks: Sequence[Sequence[Activity]],
    *,
    title: str = "",
    end: float | None = None,
    names: Sequence[str] | None = None,
) -> Picture:
    """The lanes of these ranks, from the first thing that one of them did.

    Args:
        ranks: activities by rank.
        title: the finding; by default how much of the communication is hidden.
        end: seconds to draw, so that two pictures can have the same scale; by default all.
        names: what the lanes are called; "rank 0", "rank 1", ... by default.

    Raises:
        BadInput: if no rank did anything, or in no time.
    """
    if not any(ranks):
        raise BadInput("there is nothing to draw: no rank has an activity")
    zero = min(activity.begin for own in ranks for activity in own)
    length = duration(ranks) if end is None else end
    if not 0 < length < inf:
        raise BadInput(f"there is nothing to draw: it takes {length:g} s")
    kinds = sorted({a.label for own in ranks for a in own if a.doing is Doing.COMMUNICATION})
    picture = figure(len(ranks) * (len(kinds) + 1.7) * LANE + 0.85, title or finding(ranks))
    height = 1 / (len(kinds) + 1.7)
    collectives = [name.removesuffix("_single") for name in kinds]
    ticks = {
        rank + (lane + 0.46) * height: label
        for rank, name in enumerate(names or [f"rank {rank}" for rank in range(len(ranks))])
        for lane, label in enumerate([fitted(name, NAME, SMALL), *collectives])
    }
    axes = lanes(picture.add_subplot(), ticks, SMALL)
    axes.set(xlim=(0, length), ylim=(len(ranks) - 0.05, -0.05))
    time_axis(axes, length)
    for rank, own in enumerate(ranks):
        for number, lane in enumerate(_lanes(own, kinds)):
            for activity, following in pairwise([*lane, None]):
                seen_until = min(activity.end, following.begin if following else zero + length)
                _box(axes, activity, zero, seen_until - zero, rank + number * height, height)
    seen = {activity.doing for own in ranks for activity in own}
    legend_below(axes, {str(doing): Patch(facecolor=face) for doing, face in FACES.items() if doing in seen})
    return picture


def duration(ranks: Sequence[Sequence[Activity]]) -> float:
    """Seconds from the first thing that one of these ranks did to the end of the last."""
    return max(a.end for own in ranks for a in own) - min(a.begin for own in ranks for a in own)


def hidden(own: Sequence[Activity]) -> tuple[float, float]:
    """Seconds in which communication is under way on one rank, and those of them in which the rank computes."""
    under_way = _union([(a.begin, a.end) for a in own if a.doing is Doing.COMMUNICATION])
    computing = _union([(a.begin, a.end) for a in own if a.doing is not Doing.COMMUNICATION])
    both = sum(max(0.0, min(e, f) - max(b, c)) for b, e in under_way for c, f in computing)
    return sum(e - b for b, e in under_way), both


def finding(ranks: Sequence[Sequence[Activity]]) -> str:
    """The default title."""
    length = duration(ranks)
    talking, behind = (sum(times) / len(ranks) for times in zip(*map(hidden, ranks), strict=True))
    if not talking:
        return f"{seconds_text(length)}, and nothing is said"
    return (
        f"{seconds_text(length)}: of {seconds_text(talking)} of communication, "
        f"{behind / talking:.0%} hides behind computing"
    )


def _lanes(own: Sequence[Activity], collectives: Sequence[str]) -> list[list[Activity]]:
    """What a rank computes, and then each kind of collective, in order of time."""
    lanes = [[a for a in own if a.doing is not Doing.COMMUNICATION]]
    lanes += [[a for a in own if a.doing is Doing.COMMUNICATION and a.label == label] for label in collectives]
    return [sorted(lane, key=lambda activity: activity.begin) for lane in lanes]


def _box(axes: Axes, activity: Activity, zero: float, seen_until: float, top: float, height: float) -> None:
    """A span of time, with the longest words for which there is room before the next one covers it."""
    begin, length = activity.begin - zero, activity.end - activity.begin
    style = {"facecolor": FACES[activity.doing], "edgecolor": "white", "linewidth": 0.7}
    axes.add_patch(Rectangle((begin, top), length, 0.92 * height, **style))
    size = bytes_text(activity.bytes) if activity.bytes else ""
    full = f"{activity.label.removesuffix('_single')} {size}".strip()
    room = (seen_until - begin) / axes.get_xlim()[1] * (WIDTH - 1.2) / 0.075  # letters
    words = next((words for words in (full, size or activity.label.rpartition(" ")[2]) if len(words) + 0.6 <= room), "")
    ink = ink_on(FACES[activity.doing])
    write(axes, (begin + seen_until) / 2, top + 0.46 * height, words, SMALL, ink, clip_on=True)


def _union(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time, without overlaps."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
