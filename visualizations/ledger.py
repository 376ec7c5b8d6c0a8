"""A ledger as a picture: each sum of a step a row, each rank a column, and in a cell how often that rank's part is in.

A frame says that the part should be there, once. A part that is there as it should be is orange; one that is missing,
or there too often, or for nothing, is vermilion. Of many sums of a kind, that which is worst is drawn.
"""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.errors import BadInput
from reference.roles import kind_of
from reference.trace.ledger import Entry, Ledger

from .style import SMALL, WIDTH, Colour, Picture, canvas, ink_on, write

LEFT, HEAD, FOOT = 1.85, 0.42, 0.4  # inches
HIGH, MOST_CELL, WORDS = 0.27, 0.36, 2.1  # of a row; of a cell; room for what stands at the right
MOST_RANKS = 20


def draw(ledger: Ledger, rank: int = 0, *, title: str = "") -> Picture:
    """What one rank finds in its sums.

    Args:
        ledger: of a step.
        rank: whose.
        title: the finding; by default how many sums there are, and how many are wrong.

    Raises:
        BadInput: if there is nothing of that rank, or there are more ranks than have room.
    """
    rows = worst_of_each(ledger, rank)
    if not rows:
        raise BadInput(f"the ledger has nothing of rank {rank}")
    ranks = len(next(iter(rows.values())).mesh.ranks)
    if ranks > MOST_RANKS:
        raise BadInput(f"a picture has room for {MOST_RANKS} ranks, and this is a ledger of {ranks}")
    cell = min(MOST_CELL, (WIDTH - LEFT - WORDS) / ranks)
    height = HEAD + HIGH * len(rows) + FOOT
    picture, drawing = canvas(height, title or finding(ledger))
    write(drawing, LEFT, 0.1, f"parts of ranks in what rank {rank} has", SMALL, ha="left")
    for other in range(ranks):
        write(drawing, LEFT + (other + 0.5) * cell, 0.3, str(other), SMALL)
    for number, (name, entry) in enumerate(rows.items()):
        y = HEAD + number * HIGH
        write(drawing, LEFT - 0.08, y + HIGH / 2, name, SMALL, Colour.INK, "right")
        for other in range(ranks):
            _cell(drawing, LEFT + other * cell, y, cell, entry, other)
        words = " x ".join("tp" if axis == "tp_head" else axis for axis in entry.axes) or "alone"
        ink = Colour.ERROR if entry.fault else Colour.INK
        write(drawing, LEFT + ranks * cell + 0.1, y + HIGH / 2, words, SMALL, ink, "left")
    _legend(drawing, height - FOOT / 2)
    return picture


def finding(ledger: Ledger) -> str:
    """The default title."""
    table = ledger.table()
    wrong = sum(verdict != "once" for *_, verdict in table)
    if not wrong:
        return f"All {len(table)} sums of the step hold each part once that they should hold, and no other"
    return f"{wrong} of {len(table)} sums of the step are wrong"


def worst_of_each(ledger: Ledger, rank: int) -> Mapping[str, Entry]:
    """One entry of a rank for each kind of sum: one with a fault, if there is any."""
    found: dict[str, Entry] = {}
    for entry in ledger.entries:
        if entry.rank == rank and entry.what != "norm":
            name = entry.what if entry.what == "loss" else f"{entry.what}: {_kind(entry)}"
            if name not in found or (entry.fault and not found[name].fault):
                found[name] = entry
    return found


def _kind(entry: Entry) -> str:
    return entry.name.partition(",")[0] if entry.what == "router" else kind_of(entry.name)


def _cell(drawing: Axes, left: float, top: float, cell: float, entry: Entry, other: int) -> None:
    shares = next((shares for shares in entry.found if shares and shares[other]), entry.found[0])
    count = shares[other] / entry.times if shares else None
    due = other in entry.due
    is_right = count == (1 if due else 0)
    face = "white" if is_right and not due else str(Colour.COMMUNICATION if is_right else Colour.ERROR)
    edge = {"edgecolor": Colour.INK if due else "#E6E6E6", "linewidth": 1.4 if due else 0.6, "zorder": 3 + due}
    place, high = (left + 0.02, top + 0.025), HIGH - 0.05
    drawing.add_patch(Rectangle(place, cell - 0.04, high, facecolor=face, **edge))
    if count or due:
        words = "?" if count is None else f"{count}"
        write(drawing, left + cell / 2, top + HIGH / 2, words, SMALL, ink_on(face), zorder=6)


def _legend(drawing: Axes, y: float) -> None:
    marks = (
        (Colour.COMMUNICATION, True, "is there once, and should be"),
        (Colour.ERROR, True, "missing, or too often"),
        (Colour.ERROR, False, "there, and should not be"),
    )
    for number, (face, due, words) in enumerate(marks):
        left = 0.3 + 2.55 * number
        edge = {"edgecolor": Colour.INK if due else "#E6E6E6", "linewidth": 1.4 if due else 0.6}
        drawing.add_patch(Rectangle((left, y - 0.1), 0.28, 0.2, facecolor=face, **edge))
        write(drawing, left + 0.36, y, words, SMALL, Colour.INK, "left")
