"""A mesh with its axes coloured: for each axis all ranks in their nodes, and a line through those that are together.

One panel for each axis, the same boxes in all of them. Shades tell groups apart, and a group's line goes through its
ranks: straight between neighbours, in an arc around ranks in between. Of many ranks, arcs are drawn for the
group of rank 0 alone, whose boxes then have a dark edge: the others look like it.
"""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

from reference.errors import require_sizes
from reference.mesh import Mesh

from .style import LINES, SMALL, TEXT, WIDTH, Colour, Picture, canvas, fits, fitted, ink_on, tint

_COLOURS = {
    "tensor": LINES[0][0],
    "data": LINES[1][0],
    "pipe": LINES[2][0],
    "context": LINES[3][0],
    "expert": LINES[5][0],
}
_SHORT = {"tp": "tensor", "dp": "data", "dp_shard": "data", "pp": "pipe", "cp": "context", "ep": "expert"}
AXIS_COLOURS: Mapping[str, str] = MappingProxyType(
    _COLOURS | {short: _COLOURS[axis] for short, axis in _SHORT.items()} | {"dp_shard x cp": _COLOURS["data"]}
)
"""What an axis is drawn in, in every picture."""

LEFT, HEAD, GAP = 0.15, 0.34, 0.35  # inches: the margin, above the nodes, between panels
IN_A_ROW = 8  # ranks; larger nodes have several rows
MOST_PITCH = 0.62  # from rank to rank
SHADES = 6  # that can be distinguished; of more groups, these again
MANY = 16  # ranks: with more of them, arcs would hide each other


def colour_of(axis: str, mesh: Mesh) -> str:
    """The colour of an axis; axes with other names take what is left, in order, and what is no axis is black."""
    if axis in AXIS_COLOURS or axis not in mesh.names:
        return AXIS_COLOURS.get(axis, Colour.INK)
    taken = {Colour.INK, *(AXIS_COLOURS.get(name) for name in mesh.names)}
    every = [colour for colour, _, _ in LINES if colour != Colour.INK]
    spare = [colour for colour in every if colour not in taken] or every
    return spare[[name for name in mesh.names if name not in AXIS_COLOURS].index(axis) % len(spare)]


def draw(mesh: Mesh, ranks_per_node: int = 8, *, title: str = "") -> Picture:
    """The groups of every axis that has more than one rank.

    Args:
        mesh: up to 64 ranks are readable.
        ranks_per_node: ranks 0, 1, ... fill nodes in order.
        title: the finding; by default which axes stay within nodes.

    Raises:
        BadInput: if a node has no rank.
    """
    require_sizes(ranks_per_node=ranks_per_node)
    axes = [name for name in mesh.names if mesh.size(name) > 1] or list(mesh.names[-1:])
    columns = len(axes) if len(axes) < 4 else 2
    width = (WIDTH - 2 * LEFT - (columns - 1) * GAP) / columns
    grid = _Grid(len(mesh.ranks), ranks_per_node, width)
    rows = -(-len(axes) // columns)
    picture, drawing = canvas(rows * (HEAD + grid.height + 0.18), title or finding(mesh, ranks_per_node))
    for number, axis in enumerate(axes):
        row, column = divmod(number, columns)
        left, top = LEFT + column * (width + GAP), row * (HEAD + grid.height + 0.18)
        groups = f": {len(mesh.groups(axis))} groups of {mesh.size(axis)}"
        words = fitted(axis, width - 0.08 * len(groups), TEXT, "bold") + groups
        drawing.text(left, top + 0.17, words, fontsize=TEXT, color=Colour.INK, fontweight="bold", va="center")
        _panel(drawing, left, top + HEAD, grid, mesh, axis)
    return picture


def finding(mesh: Mesh, ranks_per_node: int) -> str:
    """The default title: which axes stay within nodes of so many ranks."""
    axes = [name for name in mesh.names if mesh.size(name) > 1]
    inside = [name for name in reversed(axes) if stays(mesh, name, ranks_per_node)]
    across = [name for name in reversed(axes) if name not in inside]
    if not axes or not across:
        return f"{len(mesh.ranks)} rank{'s' * (len(mesh.ranks) > 1)}: no rank talks beyond its node"
    if not inside:
        return f"{len(mesh.ranks)} ranks in nodes of {ranks_per_node}: every axis goes from node to node"
    words = f"{_list(inside)} {'stay' if len(inside) > 1 else 'stays'} within a node"
    words += f", {_list(across)} {'go' if len(across) > 1 else 'goes'} from node to node"
    return f"{len(mesh.ranks)} ranks in nodes of {ranks_per_node}: {words}"


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def stays(mesh: Mesh, axis: str, ranks_per_node: int) -> bool:
    """Whether all groups of an axis lie within nodes."""
    return all(len({rank // ranks_per_node for rank in group}) == 1 for group in mesh.groups(axis))


class _Grid:
    """Where ranks stand in a panel of some width: nodes one below the other, each of one row or more."""

    def __init__(self, ranks: int, ranks_per_node: int, width: float) -> None:
        self.ranks, self.per_node = ranks, ranks_per_node
        self.across = min(ranks, ranks_per_node, IN_A_ROW)
        self.pitch = min(MOST_PITCH, width / self.across)
        self.box = 0.62 * self.pitch
        self.rows_of_a_node = -(-min(ranks, ranks_per_node) // self.across)
        self.nodes = -(-ranks // ranks_per_node)
        self.node_height = self.rows_of_a_node * self.pitch
        self.height = self.nodes * self.node_height + (self.nodes - 1) * self.space

    @property
    def space(self) -> float:
        """Between nodes."""
        return 0.22 * self.pitch

    def centre(self, rank: int) -> tuple[float, float]:
        """Of a rank's box, from the panel's corner."""
        node, at = divmod(rank, self.per_node)
        row, column = divmod(at, self.across)
        y = node * (self.node_height + self.space) + (row + 0.5) * self.pitch
        return (column + 0.5) * self.pitch, y

    def wraps(self, one: int, other: int) -> bool:
        """Whether the next rank is a neighbour that stands in the next row of the same node."""
        same_node = one // self.per_node == other // self.per_node
        return same_node and other == one + 1 and self.centre(one)[1] != self.centre(other)[1]


def _panel(drawing: Axes, left: float, top: float, grid: _Grid, mesh: Mesh, axis: str) -> None:
    colour = colour_of(axis, mesh)
    for node in range(grid.nodes):
        y = top + node * (grid.node_height + grid.space)
        corner = {"boxstyle": "round,pad=0,rounding_size=0.05", "zorder": 1}
        frame = FancyBboxPatch((left, y), grid.across * grid.pitch, grid.node_height, **corner)
        frame.set(facecolor="#F5F5F5", edgecolor=Colour.LINE, linewidth=1)
        drawing.add_patch(frame)
    groups = mesh.groups(axis)
    pairs = [[pair for pair in pairwise(group) if not grid.wraps(*pair)] for group in groups]
    alone = grid.ranks > MANY and any(_bend(grid, *pair) for each in pairs for pair in each)
    for number, group in enumerate(groups):
        face = shade(colour, number, min(SHADES, len(groups)))
        edge = Colour.INK if alone and number == 0 else colour
        for pair in pairs[number]:
            if not (alone and number and _bend(grid, *pair)):
                _line(drawing, left, top, grid, pair, colour if edge == colour else Colour.INK)
        for rank in group:
            _rank(drawing, left, top, grid, rank, face, edge)


def _rank(drawing: Axes, left: float, top: float, grid: _Grid, rank: int, face: str, edge: str) -> None:
    x, y = grid.centre(rank)
    place, side = (left + x - grid.box / 2, top + y - grid.box / 2), grid.box
    width = 1 if edge != Colour.INK else 1.8
    drawing.add_patch(Rectangle(place, side, side, facecolor=face, edgecolor=edge, linewidth=width, zorder=4))
    if fits(str(grid.ranks - 1), side, side):
        words = {"fontsize": SMALL, "color": ink_on(face), "ha": "center", "va": "center_baseline", "zorder": 5}
        drawing.text(left + x, top + y, str(rank), **words)


def _bend(grid: _Grid, one: int, other: int) -> tuple[float, float] | None:
    """Where to the line between two ranks goes around those between them; None between neighbours."""
    (x, y), (u, v) = grid.centre(one), grid.centre(other)
    if y == v:
        return (0.0, -0.94 * grid.pitch) if u - x > 1.01 * grid.pitch else None
    straight = x == u and v - y < 1.01 * (grid.pitch + grid.space)
    return None if straight else (0.94 * grid.pitch * (x == u), 0.0)


def _line(drawing: Axes, left: float, top: float, grid: _Grid, pair: tuple[int, int], colour: str) -> None:
    (x, y), (u, v) = map(grid.centre, pair)
    right, down = _bend(grid, *pair) or (0.0, 0.0)
    corners = [(left + a, top + b) for a, b in ((x, y), ((x + u) / 2 + right, (y + v) / 2 + down), (u, v))]
    path = Path(corners, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
    width = max(1.4, 5 * grid.pitch)
    drawing.add_patch(PathPatch(path, facecolor="none", edgecolor=colour, linewidth=width, zorder=3))


def shade(colour: str, number: int, shades: int) -> str:
    """The colour of one of several groups: from a tint of the axis's colour to all of it."""
    return tint(colour, 0.82 * (1 - (number % shades) / max(shades - 1, 1)))
