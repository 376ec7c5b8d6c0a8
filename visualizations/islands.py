"""Islands, and what crosses between them: ranks as circles, a line between two that talk, as thick as they say much.

Pale lines stay within an island, where links are fast; the others cross. Bytes are counted from a trace, for each
training step.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch

from reference.errors import BadInput
from reference.trace import Trace

from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, bytes_text, canvas, ink_on, tint, write
from .traffic import matrix

RADIUS, STEP = 0.17, 0.52  # inches: of a rank; from one rank of an island to the next
HEAD, FOOT, EDGE = 0.36, 0.36, 0.24  # inches: above and below the islands; what these are larger than their ranks
MOST_PANELS, MOST_RANKS = 2, 4  # that have room: programs, and ranks of an island
WITHIN, BETWEEN = tint(Colour.COMMUNICATION, 0.55), Colour.COMMUNICATION


def draw(traces: Mapping[str, Trace], steps: int, *, title: str = "") -> Picture:
    """Two islands for each program, side by side.

    Args:
        traces: by name, one or two. The first half of the ranks is an island, the second half the other one.
        steps: of training that each trace has.
        title: the finding; by default what crosses.

    Raises:
        BadInput: if there is no room for so many, or ranks are not two halves.
    """
    sizes = {trace.world_size for trace in traces.values()}
    if not 1 <= len(traces) <= MOST_PANELS:
        raise BadInput(f"there is room for 1 or {MOST_PANELS} programs, not {len(traces)}")
    if odd := [n for n in sizes if n % 2 or not 2 <= n <= 2 * MOST_RANKS]:
        raise BadInput(f"two islands have 2, 4, 6 or {2 * MOST_RANKS} ranks together, not {odd[0]}")
    if steps < 1:
        raise BadInput(f"a trace has 1 training step or more, not {steps}")
    picture, axes = canvas(HEAD + max(sizes) / 2 * STEP + EDGE + FOOT, title or finding(traces, steps))
    for place, (name, trace) in enumerate(traces.items()):
        width = WIDTH / len(traces)
        _panel(axes, place * width, width, name, matrix(trace) / steps)
    return picture


def crossing(sent: np.ndarray) -> float:
    """Bytes between the halves of a matrix of ranks, there and back."""
    half = len(sent) // 2
    return float(sent[:half, half:].sum() + sent[half:, :half].sum())


def finding(traces: Mapping[str, Trace], steps: int) -> str:
    """The default title."""
    said = [f"{bytes_text(crossing(matrix(trace) / steps))} ({name})" for name, trace in traces.items()]
    return f"What crosses in a step: {', '.join(said)}"


def _panel(axes: Axes, left: float, width: float, name: str, sent: np.ndarray) -> None:
    half, both = len(sent) // 2, sent + sent.T
    tall = half * STEP + EDGE
    middle, apart = HEAD + tall / 2, width / 2 - 0.75
    places = {}
    for rank in range(2 * half):
        side, row = divmod(rank, half)
        places[rank] = (left + width / 2 + (2 * side - 1) * apart, middle + (row - (half - 1) / 2) * STEP)
    write(axes, left + width / 2, 0.14, name, TEXT, Colour.INK, fontweight="bold")
    for side in range(2):
        x = left + width / 2 + (2 * side - 1) * apart
        look = {"boxstyle": "round,pad=0,rounding_size=0.3", "facecolor": "#EEF3EA", "edgecolor": Colour.LINE}
        axes.add_patch(FancyBboxPatch((x - 0.5, middle - tall / 2), 1.0, tall, **look, zorder=1))
        own = slice(side * half, (side + 1) * half)
        write(axes, x, middle + tall / 2 + 0.15, f"within {bytes_text(float(sent[own, own].sum()))}", SMALL)
    most = max(float(both.max()), 1.0)
    for one in range(2 * half):
        for other in range(one):
            if both[one, other]:
                (x0, y0), (x1, y1) = places[one], places[other]
                face = WITHIN if one // half == other // half else BETWEEN
                axes.plot([x0, x1], [y0, y1], color=face, linewidth=0.8 + 8 * both[one, other] / most, zorder=2)
    for rank, (x, y) in places.items():
        face = colour_of(rank, 2 * half)
        axes.add_patch(Circle((x, y), RADIUS, facecolor=face, edgecolor="white", linewidth=1, zorder=4))
        write(axes, x, y, str(rank), SMALL, ink_on(face), zorder=6)
    words = f"across {bytes_text(crossing(sent))}" if crossing(sent) else "nothing crosses"
    write(axes, left + width / 2, middle + tall / 2 + 0.15, words, SMALL, Colour.INK)
