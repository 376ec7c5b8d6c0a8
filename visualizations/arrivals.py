"""An asynchronous training: when each worker read the weights, when its gradient came, and how late it was.

From left to right are the versions of the weights. A box is a gradient: it begins at the version that its worker has
read and ends where it is applied, with the number of updates that came meanwhile, its staleness, in it. The darker, the
later. An arrow down is a read, an arrow up a push to the server, whose lane is on top.
"""

from collections.abc import Sequence
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from reference.decentralized.parameter_server import Arrival
from reference.errors import BadInput

from .style import SMALL, TEXT, Colour, Picture, figure, ink_on, lanes, tint

HALF = 0.3  # of a box, in lanes
MOST = 40  # updates that have room


def draw(record: Sequence[Arrival], *, first: int = 0, count: int = 24, title: str = "") -> Picture:
    """The lanes of a server and its workers.

    Args:
        record: what a server has applied, in order.
        first: the update from which on it is drawn.
        count: updates that are drawn.
        title: the finding; by default how late gradients were.

    Raises:
        BadInput: if nothing was applied from there on, or more is asked for than has room.
    """
    if not 0 < count <= MOST:
        raise BadInput(f"a picture has room for 1 to {MOST} updates, not {count}")
    seen = [arrival for arrival in record if first <= arrival.version < first + count]
    if not seen:
        raise BadInput(f"nothing was applied from update {first} on: the record has {len(record)}")
    workers = sorted({arrival.worker for arrival in record})
    rows = {worker: row for row, worker in enumerate(workers, start=1)}
    picture = figure(0.46 * (len(rows) + 1) + 0.9, title or finding(record))
    names = {0: "server", **{row: f"worker {worker}" for worker, row in rows.items()}}
    axes = lanes(picture.add_subplot(), names, TEXT)
    axes.set(xlim=(first - 0.6, first + count + 0.6), ylim=(len(rows) + 0.6, -0.6))
    axes.set_xlabel("updates of the weights", fontsize=TEXT, loc="left")
    latest = max(arrival.staleness for arrival in record)
    for arrival in seen:
        _gradient(axes, arrival, rows[arrival.worker], max(arrival.read, first), latest)
    for version in range(first, first + count + 1):
        axes.plot([version], [0], marker="o", markersize=4, color=Colour.OPTIMIZER, zorder=4)
    axes.plot([first, first + count], [0, 0], color=Colour.OPTIMIZER, linewidth=1.2, zorder=3)
    return picture


def finding(record: Sequence[Arrival]) -> str:
    """The default title."""
    late = [arrival.staleness for arrival in record]
    return f"{len(late)} gradients: in the mean {mean(late):.1f} updates late, at most {max(late)}"


def _gradient(axes: Axes, arrival: Arrival, row: int, begin: float, latest: int) -> None:
    """The box of one, its number, and its arrows."""
    end = arrival.version + 1
    face = tint(Colour.BACKWARD, 0.75 - 0.7 * arrival.staleness / max(latest, 1))
    box = Rectangle((begin + 0.08, row - HALF), end - begin - 0.16, 2 * HALF, facecolor=face, edgecolor="white")
    axes.add_patch(box).set_zorder(2)
    words = {"ha": "center", "va": "center", "fontsize": SMALL, "color": ink_on(face), "zorder": 5}
    axes.text((begin + end) / 2, row, str(arrival.staleness), **words)
    look = {"arrowstyle": "-|>", "mutation_scale": 8, "linewidth": 0.9, "shrinkA": 2, "shrinkB": 1, "zorder": 1}
    if arrival.read == begin:
        axes.add_patch(FancyArrowPatch((begin, 0), (begin + 0.16, row - HALF), color=Colour.FAINT, **look))
    push = FancyArrowPatch((end - 0.16, row - HALF), (end, 0), color=Colour.COMMUNICATION, **look)
    axes.add_patch(push)
