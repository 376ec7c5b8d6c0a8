"""Copies of state: nodes side by side, whose states each of them holds, and what a loss of some nodes leaves.

A node is a box. The number at the top is its own state, the numbers below are copies of others'. A node that is lost is
crossed out. A state of which no copy is left is vermilion wherever it was.
"""

from collections.abc import Collection, Mapping
from math import comb

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reference.errors import BadInput, require_sizes
from reference.resilience.placement import Placement, share_survived, survives

from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, figure, fits, ink_on, lines, plain, tint, write

NAME, SIDE, ROW = 1.45, 1.7, 0.26  # inches: left and right of the nodes, and the height of a state
OWN, COPY = tint(Colour.FORWARD, 0.25), tint(Colour.FORWARD, 0.8)
MOST_SETS = 200_000  # losses that are counted one by one


def draw(placements: Mapping[str, Placement], lost: Collection[int] = (), *, title: str = "") -> Picture:
    """Placements one below the other, by name, and what the same loss does to each.

    Args:
        placements: of each node, the nodes that hold its state; all of as many nodes.
        lost: nodes that are lost at once.
        title: the finding; by default which placements survive.

    Raises:
        BadInput: if there is no placement, a placement has other nodes than the first, or a lost node is none of them.
    """
    require_sizes(placements=len(placements))
    nodes = {len(placement) for placement in placements.values()}
    if len(nodes) > 1 or not all(0 <= node < max(nodes) for node in lost):
        raise BadInput(f"placements of as many nodes each, and lost ones among them, not {sorted(nodes)} and {lost}")
    heights = {name: 0.62 + ROW * most_held(placement) for name, placement in placements.items()}
    picture, axes = canvas(sum(heights.values()) + 0.3, title or finding(placements, lost))
    top = 0.0
    for name, placement in placements.items():
        _row(axes, top, name, placement, {*lost})
        top += heights[name]
    marks = {"its own state": OWN, "a copy": COPY, "no copy is left": Colour.ERROR}
    handles = [Patch(facecolor=colour, label=words) for words, colour in marks.items()]
    place = {"loc": "lower left", "bbox_to_anchor": (NAME / WIDTH - 0.02, 0), "ncols": 3, "borderaxespad": 0.1}
    axes.legend(handles=handles, frameon=False, fontsize=SMALL, labelcolor=Colour.INK, handlelength=1.2, **place)
    return picture


def finding(placements: Mapping[str, Placement], lost: Collection[int]) -> str:
    """The default title."""
    if not lost:
        return "Whose states each node holds: " + ", ".join(placements)
    *others, last = sorted(lost)
    gone = f"Nodes {', '.join(map(str, others))} and {last} are lost" if others else f"Node {last} is lost"
    said = [f"{name}: {_left(placement, lost)}" for name, placement in placements.items()]
    return f"{gone}. {'; '.join(said)}"


def most_held(placement: Placement) -> int:
    """How many states the fullest node holds."""
    return max(len(held_by(placement, node)) for node in range(len(placement)))


def held_by(placement: Placement, node: int) -> list[int]:
    """Whose states a node holds, its own first."""
    others = [owner for owner, holders in enumerate(placement) if node in holders and owner != node]
    return [node] * (node in placement[node]) + others


def gone(placement: Placement, lost: Collection[int]) -> list[int]:
    """The nodes whose states are nowhere any more."""
    return [node for node, holders in enumerate(placement) if {*holders} <= {*lost}]


def _left(placement: Placement, lost: Collection[int]) -> str:
    if survives(placement, lost):
        return "all is left"
    states = gone(placement, lost)
    return f"state {states[0]} is gone" if len(states) == 1 else f"states {', '.join(map(str, states))} are gone"


def _row(axes: Axes, top: float, name: str, placement: Placement, lost: Collection[int]) -> None:
    step = (WIDTH - NAME - SIDE) / len(placement)
    middle = top + 0.3 + ROW * most_held(placement) / 2
    write(axes, 0.1, middle, name, TEXT, Colour.INK, ha="left")
    dead = {*gone(placement, lost)}
    for node in range(len(placement)):
        held = held_by(placement, node)
        x, width = NAME + node * step, min(step * 0.86, 0.7)
        label = f"node {node}" if fits(f"node {node}", step, 1) else str(node)
        write(axes, x + width / 2, top + 0.17, label, SMALL, Colour.FAINT)
        for place, owner in enumerate(held):
            face = Colour.ERROR if owner in dead else OWN if owner == node else COPY
            if node in lost and owner not in dead:
                face = tint(Colour.IDLE, 0.4)
            y = top + 0.3 + place * ROW
            axes.add_patch(Rectangle((x, y), width, ROW, facecolor=face, edgecolor="white", linewidth=1))
            write(axes, x + width / 2, y + ROW / 2, str(owner), SMALL, ink_on(face))
        bottom = top + 0.3 + ROW * len(held)
        edge = Colour.ERROR if node in lost else Colour.LINE
        look = {"fill": False, "edgecolor": edge, "linewidth": 1.4 if node in lost else 0.8, "zorder": 4}
        axes.add_patch(Rectangle((x, top + 0.3), width, bottom - top - 0.3, **look))
        if node in lost:
            for ends in ((top + 0.3, bottom), (bottom, top + 0.3)):
                axes.plot([x, x + width], ends, color=Colour.ERROR, linewidth=1.1, zorder=4)
    if lost:
        colour = Colour.ERROR if dead else Colour.INK
        write(axes, WIDTH - SIDE + 0.08, middle, _left(placement, lost), SMALL, colour, ha="left")


def over_losses(placements: Mapping[str, Placement], losses: int, *, title: str = "") -> Picture:
    """The share of losses that each placement survives, over how many nodes are lost at once: all of them counted.

    Args:
        placements: by name.
        losses: nodes that are lost at once, at most.
        title: the finding; by default the shares for one loss more than all survive.

    Raises:
        BadInput: if there is no placement, fewer than one loss, or too many ways to lose so many nodes.
    """
    require_sizes(placements=len(placements), losses=losses)
    nodes = max(map(len, placements.values()))
    if losses > nodes or comb(nodes, losses) > MOST_SETS:
        raise BadInput(f"{losses} of {nodes} nodes: only up to {MOST_SETS:,} sets of lost nodes are counted one by one")
    counts = range(1, losses + 1)
    shares = {name: [share_survived(each, count) for count in counts] for name, each in placements.items()}
    worst = next((k for k in range(losses) if any(share[k] < 1 for share in shares.values())), losses - 1)
    said = ", ".join(f"{share[worst]:.0%} {name}" for name, share in shares.items())
    picture = figure(2.9, title or f"Of all losses of {worst + 1} nodes at once, so many lose nothing: {said}")
    axes = plain(picture.add_subplot())
    for (name, share), (colour, dash, marker) in zip(shares.items(), lines(len(shares)), strict=True):
        axes.plot(counts, share, marker, color=colour, linestyle=dash, linewidth=1.8, markersize=6, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("nodes that are lost at once", fontsize=TEXT, loc="left")
    axes.set_ylabel("share that loses no state", fontsize=TEXT)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_ylim(0, 1.05)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "handlelength": 2.6}
    axes.legend(frameon=False, fontsize=SMALL, labelcolor=Colour.INK, **place)
    return picture
