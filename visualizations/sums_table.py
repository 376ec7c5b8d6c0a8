"""Whose sums are whose, as a table: a row for each kind of number, a column for each axis, a letter in each cell."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.mesh import TENSOR, Mesh
from reference.roles import Role, Row

from .rank_colours import SAME, colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, ink_on, write

LEFT, HEAD, FOOT = 1.75, 0.62, 0.42  # inches
HIGH = 0.27  # of a row
FACES = {Role.PARTS: str(Colour.COMMUNICATION), Role.SPLIT: colour_of(1, 4), Role.REPLICAS: SAME}
WORDS = {
    Role.PARTS: "parts: they are summed",
    Role.SPLIT: "split: nothing to sum",
    Role.REPLICAS: "replicas: it counts once",
}
NAMES = {"tp_head": "tp", "dp_replicate": "dp_repl."}


def draw(rows: Mapping[str, Row], mesh: Mesh, view: Mesh, *, title: str = "") -> Picture:
    """The table of a plan.

    Args:
        rows: as `reference.roles.roles` makes them.
        mesh, view: `Plan.mesh` and `Plan.expert_mesh`, whose sizes stand above.
        title: the finding; by default which gradients are summed along fewer axes than others.
    """
    axes = [axis for axis in mesh.names if axis not in TENSOR[1:] or mesh.size(axis) > 1]
    columns = [*((axis, mesh) for axis in axes), *((axis, view) for axis in view.names if axis not in mesh.names)]
    wide = (WIDTH - LEFT - 0.15 - 0.2) / len(columns)
    height = HEAD + len(rows) * HIGH + FOOT
    picture, drawing = canvas(height, title or finding(rows))
    lefts = [LEFT + number * wide + 0.2 * (each is view) for number, (_, each) in enumerate(columns)]
    own = lefts[len(axes)]
    write(drawing, LEFT, 0.1, "all ranks, as dense layers see them", SMALL, ha="left")
    write(drawing, own, 0.1, "as experts see them", SMALL, ha="left")
    for left, (axis, each) in zip(lefts, columns, strict=True):
        write(drawing, left + wide / 2, 0.3, NAMES.get(axis, axis), TEXT, Colour.INK, fontweight="bold")
        write(drawing, left + wide / 2, 0.48, f"{each.size(axis)} rank{'s' * (each.size(axis) > 1)}", SMALL)
    for number, (name, row) in enumerate(rows.items()):
        y = HEAD + number * HIGH
        write(drawing, LEFT - 0.08, y + HIGH / 2, name, SMALL, Colour.INK, "right")
        for left, (axis, _) in zip(lefts, columns, strict=True):
            if axis in row:
                _cell(drawing, left, y, wide, row[axis])
    for number, (role, words) in enumerate(WORDS.items()):
        left, y = 0.3 + 2.5 * number, height - FOOT / 2
        _cell(drawing, left, y - HIGH / 2, 0.3, role)
        write(drawing, left + 0.38, y, words, SMALL, Colour.INK, "left")
    return picture


def finding(rows: Mapping[str, Row]) -> str:
    """The default title: what experts' gradients need, and those of all else."""
    experts = [axis for axis, role in rows.get("gradient: experts", {}).items() if role is Role.PARTS]
    dense = [axis for axis, role in rows["gradient: queries, output"].items() if role is Role.PARTS]
    words = f"Gradients of queries are summed along {_list(dense)}"
    return f"{words}; those of experts along {_list(experts)}" if experts else words


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cell(drawing: Axes, left: float, top: float, wide: float, role: Role) -> None:
    face = FACES[role]
    box = Rectangle((left + 0.02, top + 0.02), wide - 0.04, HIGH - 0.04, facecolor=face, linewidth=0, zorder=3)
    drawing.add_patch(box)
    write(drawing, left + wide / 2, top + HIGH / 2, str(role), SMALL, ink_on(face), fontweight="bold")
