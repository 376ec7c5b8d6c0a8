"""Ranks and links of a network: which rank lives where, and what a message costs on each class of link."""

from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from reference.errors import require_sizes
from reference.trace import Link, Network

from .style import SMALL, TEXT, WIDTH, Colour, Picture, bandwidth_text, canvas, fitted, seconds_text, write

SIZES = ((1_000, "1 KB"), (1_000_000, "1 MB"), (1_000_000_000, "1 GB"))  # messages that the table puts a time to
MOST_NODES, MOST_RANKS = 4, 12  # that are drawn; of more, the first ones and the last
LEFT, TOP = 0.15, 0.34  # inches, where nodes begin
ROW, EDGE, COLUMN, GAP = 0.29, 0.13, 1.45, 0.32  # a rank, the margin in a node, a node's width, between nodes
TABLE = (0.0, 1.05, 1.73, 2.25, 2.93, 3.61)  # where columns begin


def draw(network: Network, *, world_size: int | None = None, title: str = "") -> Picture:
    """Nodes as boxes, ranks running down in them, and a line for each link, thicker where there is more bandwidth.

    Args:
        network: what to draw.
        world_size: how many ranks, where the network leaves that open.
        title: the finding; by default how the two classes of link compare.

    Raises:
        BadInput: if there is no rank.
    """
    if world_size is not None:
        require_sizes(world_size=world_size)
    ranks = network.world_size or world_size or network.ranks_per_node or 8
    nodes = [list(node) for _, node in groupby(range(ranks), network.node)]
    links = _classes(network, nodes)
    shown = _ends(range(len(nodes)), MOST_NODES)
    bottom = TOP + min(max(map(len, nodes)), MOST_RANKS) * ROW + 2 * EDGE
    bus = bottom + 0.3
    beside = len(shown) <= 2
    height = (bus + 0.28 if len(nodes) > 1 else bottom + 0.1) + (0 if beside else 0.36 + 0.22 * len(links))
    picture, axes = canvas(height, title or finding(network, ranks))
    for place, number in enumerate(shown):
        _node(axes, LEFT + place * (COLUMN + GAP), number, nodes[number], network.intra)
        if len(nodes) > 1:
            _ports(axes, LEFT + place * (COLUMN + GAP), bottom, bus, len(nodes[number]), network.inter)
    right = LEFT + len(shown) * (COLUMN + GAP) - GAP
    if len(shown) < len(nodes):
        write(axes, right - COLUMN - GAP / 2, (TOP + bottom) / 2, "···", TEXT + 2, Colour.INK)
    if len(nodes) > 1:
        axes.plot([LEFT, right], [bus, bus], color=Colour.INK, linewidth=thickness(network.inter), zorder=2)
        write(axes, LEFT, bus + 0.15, fitted(network.inter.name, WIDTH - 2 * LEFT, SMALL), SMALL, Colour.INK, ha="left")
    if links:
        _table(axes, *((right + GAP, TOP + 0.1) if beside else (LEFT, bus + 0.44)), links)
    return picture


def finding(network: Network, ranks: int) -> str:
    """The default title: the two classes of link compared."""
    if ranks == 1:
        return "1 rank: no other to talk to"
    one_node, alone = network.node(ranks - 1) == 0, network.ranks_per_node == 1
    if one_node or alone or network.intra == network.inter:
        link = network.intra if one_node else network.inter
        return f"{ranks} ranks, {bandwidth_text(link.beta)} between any two of them"
    ratio = network.intra.beta / network.inter.beta
    words = f"{ratio:,.3g} times as fast as" if ratio < 1000 else f"{ratio:,.0f} times as fast as"
    return f"{ranks} ranks: links within a node are {words} those between nodes"


def _classes(network: Network, nodes: list[list[int]]) -> list[tuple[str, Link]]:
    """The classes of link that the picture has, with where they are."""
    within = [("within a node", network.intra)] if len(nodes[0]) > 1 else []
    return within + ([("between nodes", network.inter)] if len(nodes) > 1 else [])


def _ends(items: range | list[int], most: int) -> list[int]:
    """All items, or the first ones and the last."""
    return list(items) if len(items) <= most else [*items[: most - 1], items[-1]]


def _node(axes: Axes, left: float, number: int, ranks: list[int], intra: Link) -> None:
    """A box with its ranks and the switch that joins them."""
    shown = _ends(ranks, MOST_RANKS)
    height = len(shown) * ROW + 2 * EDGE
    box = FancyBboxPatch((left, TOP), COLUMN, height, boxstyle="round,pad=0,rounding_size=0.06", zorder=1)
    box.set(facecolor="#F5F5F5", edgecolor=Colour.LINE, linewidth=1)
    axes.add_patch(box)
    write(axes, left + 0.02, TOP - 0.12, f"node {number}", SMALL, Colour.INK, ha="left")
    switch = left + 1.0
    for row, rank in enumerate(shown):
        y = TOP + EDGE + (row + 0.5) * ROW
        if row and rank != shown[row - 1] + 1:
            write(axes, left + EDGE + 0.25, y - ROW / 2, "⋮", SMALL, Colour.INK)
        if len(ranks) > 1:
            axes.plot([left + 0.6, switch], [y, y], color=Colour.FAINT, linewidth=thickness(intra), zorder=2)
        face = Rectangle((left + EDGE, y - 0.1), 0.5, 0.2, facecolor="white", edgecolor=Colour.INK, zorder=3)
        axes.add_patch(face)
        write(axes, left + EDGE + 0.25, y, f"rank {rank}", SMALL, Colour.INK)
    if len(ranks) > 1:
        axes.add_patch(Rectangle((switch, TOP + EDGE), 0.13, height - 2 * EDGE, color=Colour.FAINT, zorder=3))
        name = fitted(intra.name, height - EDGE, SMALL)
        write(axes, switch + 0.27, TOP + height / 2, name, SMALL, Colour.INK, rotation=90)


def _ports(axes: Axes, left: float, bottom: float, bus: float, ranks: int, inter: Link) -> None:
    """A line from the node to the others for each rank, as far as lines can be distinguished."""
    lines = min(ranks, 8)
    for i in range(lines):
        x = left + COLUMN * (i + 1) / (lines + 1)
        axes.plot([x, x], [bottom, bus], color=Colour.INK, linewidth=min(thickness(inter), 3), zorder=0)


def _table(axes: Axes, x: float, y: float, links: list[tuple[str, Link]]) -> None:
    """For each class of link its numbers, and what messages of some sizes take on it."""
    for column, words in zip(TABLE, ("", "bandwidth", "latency", *(f"{name} takes" for _, name in SIZES)), strict=True):
        write(axes, x + column, y, words, SMALL, Colour.FAINT, ha="left")
    for row, (where, link) in enumerate(links):
        times = (seconds_text(link.time(size)) for size, _ in SIZES)
        cells = (where, bandwidth_text(link.beta), seconds_text(link.alpha), *times)
        for column, words in zip(TABLE, cells, strict=True):
            write(axes, x + column, y + 0.22 * (row + 1), words, SMALL, Colour.INK, ha="left")


def thickness(link: Link) -> float:
    """Points of a link's line: it grows with the number of digits of its bandwidth."""
    return min(5.0, max(0.8, 0.8 * len(f"{link.beta / 1e5:.0f}") - 0.8))
