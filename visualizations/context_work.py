"""How much each rank of a ring has to do in each step, and how long it waits for the slowest.

A lane for each rank, steps from left to right: coloured what it computes, grey what it waits, because the next block
comes when the slowest rank has finished with its own. Counted in pairs of a query and a key that it sees.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.context_parallel import cost
from reference.context_parallel.layouts import Layout
from reference.context_parallel.tokens import CAUSAL, Mask, work
from reference.errors import BadInput

from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, fits, ink_on, tint, write

DONE = 0.72  # how white what lies behind is
LEFT, LANE = 0.55, 0.21  # inches: before the lanes; for one of them


def draw(layouts: Mapping[str, Layout], mask: Mask = CAUSAL, *, title: str = "") -> Picture:
    """The lanes of all ranks, for each layout on the same scale.

    Args:
        layouts: by name, of the same tokens on as many ranks.
        mask: who sees whom.
        title: the finding; by default how much of the time ranks compute.

    Raises:
        BadInput: if there is no layout, or there is nothing to compute.
    """
    if not layouts:
        raise BadInput("there is no layout to draw: give one or more, by name")
    every = {name: [steps_of(held, step, mask) for step in range(held.ranks)] for name, held in layouts.items()}
    longest = max(length(steps) for steps in every.values())
    if not longest:
        raise BadInput("there is nothing to compute: the mask hides all tokens from each other")
    heights = [LANE * held.ranks + 0.42 for held in layouts.values()]
    picture, axes = canvas(sum(heights) + 0.2, title or _busy(layouts, mask))
    top, room = 0.0, WIDTH - LEFT - 0.15
    for (name, held), height in zip(layouts.items(), heights, strict=True):
        words = f"{name}: {length(every[name]):,} pairs one after another, {cost.ring_efficiency(held, mask):.0%} busy"
        write(axes, LEFT, top + 0.14, words, TEXT, Colour.INK, ha="left")
        bars(axes, LEFT, top + 0.26, LANE, room * length(every[name]) / longest, every[name])
        write(axes, 0.12, top + 0.26 + LANE * held.ranks / 2, "ranks", SMALL, rotation=90)
        top += height
    write(axes, WIDTH - 0.15, top + 0.04, "grey: it waits for the slowest rank of the step", SMALL, ha="right")
    return picture


def finding(layout: Layout, mask: Mask = CAUSAL) -> str:
    """The title for one layout."""
    n = layout.ranks
    longest = length([steps_of(layout, step, mask) for step in range(n)])
    fair = sum(cost.pairs(layout, rank, mask) for rank in range(n)) / n
    busy = cost.ring_efficiency(layout, mask)
    return f"The slowest ranks of {n} steps compute {longest} pairs, where {fair:g} are a fair share: {busy:.0%} busy"


def steps_of(layout: Layout, step: int, mask: Mask = CAUSAL) -> list[int]:
    """How many pairs each rank computes in a step."""
    n = layout.ranks
    return [work(layout.tokens[rank], layout.tokens[(rank - step) % n], mask) for rank in range(n)]


def length(steps: Sequence[Sequence[int]]) -> int:
    """How many pairs are computed one after another: in each step by its slowest rank."""
    return sum(max(step) for step in steps)


def bars(
    axes: Axes,
    left: float,
    top: float,
    lane: float,
    room: float,
    steps: Sequence[Sequence[int]],
    now: int | None = None,
) -> None:
    """The lanes of all ranks, in a place so many inches wide.

    Args:
        axes: in inches.
        left, top: where they begin.
        lane: inches for each.
        room: inches for all steps.
        steps: what each rank has to do, step by step.
        now: the last step to be drawn, those before it in tints; all of them by default.
    """
    scale, n = room / max(length(steps), 1), len(steps)
    for rank in range(n):
        x, y, high, face = left, top + rank * lane, 0.8 * lane, colour_of(rank, n)
        write(axes, left - 0.12, y + high / 2, str(rank), SMALL, Colour.INK, va="center_baseline")
        for step, each in enumerate(steps[: n if now is None else now + 1]):
            shade = face if now in (None, step) else tint(face, DONE)
            _box(axes, x, y, max(each) * scale, high, Colour.IDLE)
            _box(axes, x, y, each[rank] * scale, high, shade)
            words = f"{each[rank]:,}"
            if now in (None, step) and each[rank] and fits(words, each[rank] * scale, high):
                write(axes, x + each[rank] * scale / 2, y + high / 2, words, SMALL, ink_on(shade), va="center_baseline")
            x += max(each) * scale


def _busy(layouts: Mapping[str, Layout], mask: Mask) -> str:
    shares = ", ".join(f"{cost.ring_efficiency(held, mask):.0%} ({name})" for name, held in layouts.items())
    return f"In a ring, all ranks wait for the slowest: busy for {shares} of the time"


def _box(axes: Axes, x: float, y: float, wide: float, high: float, face: str) -> None:
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=face, edgecolor="#CCCCCC", linewidth=0.5))
