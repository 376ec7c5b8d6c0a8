"""Tokens that go to experts on other ranks, and back: a dot for each row, in the colour of the rank that has the token.

Three columns, ranks one below the other: tokens; a row for each of their choices, in the order of ranks and experts;
and the rows where their experts are. Orange lines are messages, thick where many rows travel. What an expert has made
is a ring. A step shows what there is after it, with tints for what lies behind.

All of it follows from `Routes`: from which experts the tokens of each rank have chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.path import Path

from reference.errors import BadInput
from reference.expert_parallel.cost import Routes

from .player import Player
from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, ink_on, tint, write

PITCH, RADIUS = 0.2, 0.088  # inches: from dot to dot; of a dot
LINE, GAP, HEAD, FOOT = 0.21, 0.16, 0.4, 0.32  # of a line of dots; between ranks; above and below all
TOKENS, CHOICES, EXPERTS = 0.92, 2.36, 5.72  # where the dots of the three columns begin
ROOM = {TOKENS: 0.85, CHOICES: 1.65, EXPERTS: 2.2}
MOST_RANKS = 6
DONE = 0.75  # how white what lies behind is
PAUSE = 1800  # milliseconds between two steps


class Step(IntEnum):
    """What happens, one after the other."""

    CHOOSE = 0
    PERMUTE = 1
    COUNT = 2
    DISPATCH = 3
    COMPUTE = 4
    COMBINE = 5
    ADD = 6


SAID = {
    Step.CHOOSE: "each token chooses its experts",
    Step.PERMUTE: "a row for each choice, in the order of the experts, so of their ranks",
    Step.COUNT: "counts go first: each rank must know how many rows come",
    Step.DISPATCH: "rows go to the ranks that have their experts",
    Step.COMPUTE: "in the order of the experts: each computes its rows at once",
    Step.COMBINE: "what experts have made (rings) goes back the same way",
    Step.ADD: "each token adds up what its experts have made of it",
}


@dataclass(frozen=True)
class Dot:
    """A row of numbers.

    Attributes:
        home: the rank that has the token.
        words: printed in it.
    """

    home: int
    words: str


def draw(routes: Routes, *, title: str = "") -> Picture:
    """The whole way, there and back.

    Args:
        routes: of up to 6 ranks; as many tokens as there is room for.
        title: the finding; by default how many rows travel, and what the busiest rank has to compute.

    Raises:
        BadInput: if there are too many ranks to see.
    """
    return _drawn(routes, None, title or finding(routes))


def draw_step(routes: Routes, step: Step) -> Picture:
    """What there is after one step. Arguments as for `draw`."""
    return _drawn(routes, step, f"Step {step + 1} of {len(Step)}: {SAID[step]}")


def play(routes: Routes, *, title: str = "") -> Player:
    """The steps, one at a time. Arguments as for `draw`."""

    def frame(number: int) -> bytes:
        return draw_step(routes, Step(number)).png()

    def caption(number: int) -> str:
        return f"step {number + 1} of {len(Step)}"

    return Player(len(Step), frame, caption, PAUSE, draw(routes, title=title))


def finding(routes: Routes) -> str:
    """The default title."""
    rows = routes.rows()
    every, leave = int(rows.sum()), int(rows.sum() - rows.diagonal().sum())
    busiest, mean = int(rows.sum(0).max()), every / routes.ranks
    words = f"{leave} of {every} rows leave their rank; the busiest rank computes"
    return f"{words} {busiest}, where {mean:g} are a fair share"


def token_dots(routes: Routes, rank: int) -> list[Dot]:
    """Tokens of a rank, by number."""
    return [Dot(rank, str(token)) for token in range(len(routes.chosen[rank]))]


def choice_dots(routes: Routes, rank: int) -> list[list[Dot]]:
    """For each rank with experts, the rows that a rank has for it, in the order of experts: their experts' numbers."""
    counts = routes.counts()[rank].view(routes.ranks, routes.here).tolist()
    return [
        [Dot(rank, str(other * routes.here + place)) for place, count in enumerate(here) for _ in range(count)]
        for other, here in enumerate(counts)
    ]


def arrived_dots(routes: Routes, rank: int) -> list[list[Dot]]:
    """For each rank with tokens, the rows that have come from it, as they come: in the order of experts."""
    return [choice_dots(routes, source)[rank] for source in range(routes.ranks)]


def expert_dots(routes: Routes, rank: int) -> list[list[Dot]]:
    """For each expert of a rank, its rows: their ranks' numbers."""
    counts = routes.counts().T[rank * routes.here : (rank + 1) * routes.here].tolist()
    return [[Dot(home, str(home)) for home, count in enumerate(of) for _ in range(count)] for of in counts]


def _drawn(routes: Routes, step: Step | None, title: str) -> Picture:
    if routes.ranks > MOST_RANKS:
        raise BadInput(f"{routes.ranks} ranks are more than can be seen: draw {MOST_RANKS} or fewer")
    highs = [_height(routes, rank) for rank in range(routes.ranks)]
    tops = [HEAD + sum(highs[:rank]) + rank * GAP for rank in range(routes.ranks)]
    foot = tops[-1] + highs[-1]
    picture, axes = canvas(foot + FOOT, title)
    for x, words in ((TOKENS, "tokens"), (CHOICES, _second(step)), (EXPERTS, _third(step))):
        write(axes, x - RADIUS, 0.14, words, SMALL, Colour.INK, ha="left")
    for rank, (top, high) in enumerate(zip(tops, highs, strict=True)):
        axes.add_patch(Rectangle((0.08, top - 0.06), WIDTH - 0.16, high + 0.12, facecolor="#F6F6F6", edgecolor="none"))
        write(axes, 0.16, top + high / 2, f"rank {rank}", TEXT, Colour.INK, ha="left")
        _tokens(axes, routes, rank, top, step)
        _choices(axes, routes, rank, top, step)
        _experts(axes, routes, rank, top, step)
    _messages(axes, routes, tops, step)
    _legend(axes, routes, foot + 0.2, step)
    return picture


def _second(step: Step | None) -> str:
    return "their experts" if step is Step.CHOOSE else "rows: number of the expert"


def _third(step: Step | None) -> str:
    if step is not None and step < Step.DISPATCH:
        return ""
    return "rows: number of the expert" if step is Step.DISPATCH else "rows: number of their rank"


def _height(routes: Routes, rank: int) -> float:
    columns = (
        (TOKENS, [token_dots(routes, rank)]),
        (CHOICES, choice_dots(routes, rank)),
        (EXPERTS, arrived_dots(routes, rank)),
        (EXPERTS, expert_dots(routes, rank)),
    )
    return max(sum(_lines(len(dots), x) for dots in groups) for x, groups in columns) * LINE


def _across(x: float) -> int:
    """How many dots have room in a line of a column."""
    return int(ROOM[x] / PITCH)


def _lines(dots: int, x: float) -> int:
    return max(1, -(-dots // _across(x)))


def _places(
    groups: Sequence[Sequence[Dot]], x: float, top: float
) -> Iterator[tuple[float, list[tuple[Dot, float, float]]]]:
    """For each group of dots the height of its first line, and where its dots are."""
    y = top + LINE / 2
    for group in groups:
        placed = [
            (dot, x + number % _across(x) * PITCH, y + number // _across(x) * LINE) for number, dot in enumerate(group)
        ]
        yield y, placed
        y += _lines(len(group), x) * LINE


def _tokens(axes: Axes, routes: Routes, rank: int, top: float, step: Step | None) -> None:
    now, made = step in (None, Step.CHOOSE, Step.ADD), step is Step.ADD
    for _, placed in _places([token_dots(routes, rank)], TOKENS, top):
        for dot, x, y in placed:
            _dot(axes, dot, x, y, routes.ranks, ring=made, behind=not now)


def _choices(axes: Axes, routes: Routes, rank: int, top: float, step: Step | None) -> None:
    if step is Step.CHOOSE:
        _choosing(axes, routes, rank, top)
        return
    behind = step in (Step.DISPATCH, Step.COMPUTE, Step.ADD)
    for other, (y, placed) in enumerate(_places(choice_dots(routes, rank), CHOICES, top)):
        words = f"to {other}" + (f": {len(placed)}" if step is Step.COUNT else "")
        write(axes, CHOICES - 0.16, y, words, SMALL, Colour.INK if step is Step.COUNT else Colour.FAINT, ha="right")
        for dot, x, dot_y in placed:
            _dot(axes, dot, x, dot_y, routes.ranks, ring=step in (Step.COMBINE, Step.ADD), behind=behind)


def _choosing(axes: Axes, routes: Routes, rank: int, top: float) -> None:
    """The choices of each token, side by side, in the order of tokens: as many tokens in a line as beside it."""
    chosen, across = routes.chosen[rank].tolist(), _across(TOKENS)
    pitch = ROOM[CHOICES] / across
    for token, experts in enumerate(chosen):
        for place, expert in enumerate(experts):
            x = CHOICES + token % across * pitch + place * (PITCH - 0.015)
            y = top + LINE / 2 + token // across * LINE
            _dot(axes, Dot(rank, str(expert) if expert >= 0 else "-"), x, y, routes.ranks)


def _experts(axes: Axes, routes: Routes, rank: int, top: float, step: Step | None) -> None:
    if step in (Step.CHOOSE, Step.PERMUTE):
        return
    if step in (Step.COUNT, Step.DISPATCH):
        for source, (y, placed) in enumerate(_places(arrived_dots(routes, rank), EXPERTS, top)):
            words = f"from {source}" + (f": {len(placed)}" if step is Step.COUNT else "")
            write(axes, EXPERTS - 0.16, y, words, SMALL, Colour.INK if step is Step.COUNT else Colour.FAINT, ha="right")
            for dot, x, dot_y in placed if step is Step.DISPATCH else ():
                _dot(axes, dot, x, dot_y, routes.ranks)
        return
    for place, (y, placed) in enumerate(_places(expert_dots(routes, rank), EXPERTS, top)):
        words = f"expert {rank * routes.here + place}"
        write(axes, EXPERTS - 0.16, y, words, SMALL, Colour.INK, ha="right")
        for dot, x, dot_y in placed:
            _dot(axes, dot, x, dot_y, routes.ranks, ring=step is not None, behind=step in (Step.COMBINE, Step.ADD))


def _messages(axes: Axes, routes: Routes, tops: Sequence[float], step: Step | None) -> None:
    """Lines between the second and the third column."""
    if step not in (None, Step.COUNT, Step.DISPATCH, Step.COMBINE):
        return
    rows = routes.rows().tolist()
    heads = [[y for y, _ in _places(choice_dots(routes, rank), CHOICES, tops[rank])] for rank in range(routes.ranks)]
    as_they_come = step in (Step.COUNT, Step.DISPATCH)
    start = CHOICES + ROOM[CHOICES] - 0.02
    for source in range(routes.ranks):
        for target in range(routes.ranks):
            if not rows[source][target] and step is not Step.COUNT:
                continue
            last, y = min(rows[source][target], _across(CHOICES)), heads[source][target]
            if as_they_come:
                below = [y for y, _ in _places(arrived_dots(routes, target), EXPERTS, tops[target])][source]
                end = EXPERTS - (0.68 if step is Step.DISPATCH else 0.82), below
            else:
                end = EXPERTS - 0.9, tops[target] + _height(routes, target) * (source + 0.5) / routes.ranks
            lead, begin = (CHOICES + (last - 0.35) * PITCH, y), (start, y)
            style = {None: "<->", Step.COMBINE: "<-"}.get(step, "->")
            _arrow(axes, (lead, begin, end), 1 if step is Step.COUNT else rows[source][target], source == target, style)


def _arrow(axes: Axes, path: Sequence[tuple[float, float]], rows: int, stays: bool, style: str) -> None:
    look: dict[str, Any] = {"color": Colour.LINE if stays else Colour.COMMUNICATION, "zorder": 2 if stays else 3}
    bend = Path(path, [Path.MOVETO, Path.LINETO, Path.LINETO])
    head = f"{style},head_width={1.6 + 0.2 * rows},head_length={2.2 + 0.2 * rows}"
    width = 0.6 + 0.4 * rows
    axes.add_patch(FancyArrowPatch(path=bend, arrowstyle=head, linewidth=width, joinstyle="round", **look))


def _dot(axes: Axes, dot: Dot, x: float, y: float, ranks: int, ring: bool = False, behind: bool = False) -> None:
    colour = colour_of(dot.home, ranks)
    colour = tint(colour, DONE) if behind else colour
    edge = Colour.LINE if behind else Colour.FAINT
    axes.add_patch(Circle((x, y), RADIUS, facecolor=colour, edgecolor=edge, linewidth=0.5, zorder=4))
    face = "white" if ring else colour
    if ring:
        axes.add_patch(Circle((x, y), RADIUS - 0.027, facecolor=face, edgecolor="none", zorder=4))
    ink = Colour.FAINT if behind else ink_on(face)
    write(axes, x, y, dot.words, SMALL, ink, va="center_baseline", zorder=6)


def _legend(axes: Axes, routes: Routes, y: float, step: Step | None) -> None:
    write(axes, 0.16, y, "tokens of rank", SMALL, Colour.INK, ha="left")
    x = 1.2
    for rank in range(routes.ranks):
        _dot(axes, Dot(rank, str(rank)), x, y, routes.ranks)
        x += 0.22
    axes.plot([x + 0.15, x + 0.45], [y, y], color=Colour.COMMUNICATION, linewidth=2.5)
    write(axes, x + 0.53, y, "message: thick where many rows travel", SMALL, Colour.INK, ha="left")
    axes.plot([x + 3.2, x + 3.5], [y, y], color=Colour.LINE, linewidth=2.5)
    write(axes, x + 3.58, y, "stays on its rank", SMALL, Colour.INK, ha="left")
