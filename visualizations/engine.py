"""The engine of the capstone: a row for each part, and a seat for each place that a puzzle can take.

A blue seat runs a learner's code, a white one the reference's; a vermilion one with a cross is the learner's, and is to
blame for what went wrong.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch

from .style import MARGIN, SMALL, TEXT, WIDTH, Colour, Picture, canvas, tint, width_of

Seats = Mapping[str, Sequence[tuple[str, str]]]
"""By part of the engine, (name, whose) of each seat; whose is one of `WHOSE`."""
WHOSE = {"own": "your code", "reference": "the reference's", "blamed": "✗ yours, and to blame"}
LOOKS = {
    "own": {"facecolor": Colour.FORWARD, "edgecolor": Colour.FORWARD},
    "reference": {"facecolor": "white", "edgecolor": Colour.LINE},
    "blamed": {"facecolor": tint(Colour.ERROR, 0.75), "edgecolor": Colour.ERROR},
}
INKS = {"own": "white", "reference": Colour.FAINT, "blamed": Colour.INK}
LEFT, GAP, PAD, HIGH = 1.05, 0.08, 0.14, 0.24  # inches: where seats begin, between them, within, and how high
LINE = 0.33  # inches from one line of seats to the next


def draw(seats: Seats, *, title: str = "") -> Picture:
    """The engine, its parts from top to bottom in the order of a step.

    Args:
        seats: of each part.
        title: the finding; by default how many seats run the learner's code.
    """
    rows = {part: _lines(each) for part, each in seats.items()}
    height = LINE * sum(map(len, rows.values())) + 0.12 * len(rows)
    picture, axes = canvas(height + LINE, title or finding(seats))
    top = 0.0
    for part, lines in rows.items():
        axes.text(MARGIN, top + LINE / 2, part, fontsize=TEXT, va="center", color=Colour.INK)
        for line in lines:
            for left, wide, name, whose in line:
                _seat(axes, left, top + (LINE - HIGH) / 2, wide, name, whose)
            top += LINE
        axes.plot([MARGIN, WIDTH - MARGIN], [top + 0.06] * 2, color=Colour.IDLE, linewidth=0.6)
        top += 0.12
    found = {whose for each in seats.values() for _, whose in each}
    marks = {words: Patch(**LOOKS[whose]) for whose, words in WHOSE.items() if whose in found}
    axes.legend(marks.values(), marks.keys(), loc="lower right", ncols=len(marks), fontsize=SMALL, frameon=False)
    return picture


def finding(seats: Seats) -> str:
    """The default title."""
    everyone = [whose for each in seats.values() for _, whose in each]
    own = sum(whose != "reference" for whose in everyone)
    blamed = everyone.count("blamed")
    return f"{own} of {len(everyone)} seats run your code" + (f", and {blamed} of them wrongly" if blamed else "")


def _lines(seats: Sequence[tuple[str, str]]) -> list[list[tuple[float, float, str, str]]]:
    """(left, width, name, whose) of each seat, line by line, as they fit."""
    lines, left = [[]], LEFT
    for name, whose in seats:
        name = f"✗ {name}" if whose == "blamed" else name
        wide = width_of(name, SMALL, "normal") + PAD
        if left + wide > WIDTH - MARGIN and lines[-1]:
            lines.append([])
            left = LEFT
        lines[-1].append((left, wide, name, whose))
        left += wide + GAP
    return lines


def _seat(axes: Axes, left: float, top: float, wide: float, name: str, whose: str) -> None:
    box = FancyBboxPatch(
        (left, top), wide, HIGH, boxstyle="round,pad=0,rounding_size=0.05", linewidth=1, **LOOKS[whose]
    )
    axes.add_patch(box)
    axes.text(left + wide / 2, top + HIGH / 2, name, fontsize=SMALL, ha="center", va="center", color=INKS[whose])
