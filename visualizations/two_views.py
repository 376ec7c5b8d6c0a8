"""The same ranks seen twice: as dense layers see them, and below as experts do.

A frame is a stage of one replica of the model: neither view changes it. Inside, each rank stands in the same place in
both views. Its colour says what it holds of a matrix, or which experts, and the words in its box where it stands on
each axis of that view. What has one colour within a frame are copies, whose gradients are summed.
"""

from collections.abc import Callable, Mapping
from math import prod

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from reference.errors import BadInput
from reference.mesh import TENSOR, Mesh

from .rank_colours import SAME, colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, ink_on, write

LEFT, GAP = 0.12, 0.12  # inches: the margin, between frames
LINE, PAD = 0.165, 0.06  # of words in a box; around boxes
MOST_PITCH, ACROSS = 0.62, 4  # from rank to rank; ranks in a row of a frame
SHORT = {"dp_shard": "dp", "tp_head": "tp", "tp_copy": "copy"}
"""What an axis is called inside a box."""


def draw(mesh: Mesh, view: Mesh, experts: int, *, title: str = "") -> Picture:
    """Both views of the ranks of a plan.

    Args:
        mesh, view: `Plan.mesh` and `Plan.expert_mesh`.
        experts: E, of a layer.
        title: the finding; by default how many copies there are of what.

    Raises:
        BadInput: if there are more frames than have room, or the meshes are of different ranks.
    """
    outer = [axis for axis in ("pp", "dp_replicate") if mesh.size(axis) > 1]
    frames = mesh.size(*outer) if outer else 1
    if frames > 4 or len(mesh.ranks) // frames > 16:
        raise BadInput(f"a picture has room for 4 frames of up to 16 ranks, and {mesh} has {frames} frames")
    if view.ranks != mesh.ranks:
        raise BadInput(f"{mesh} and {view} are not of the same ranks")
    of_rank = -(-experts // view.size("ep"))
    halves = (
        (mesh, "Dense layers", "block of each matrix", TENSOR, lambda at: ""),
        (view, "Experts", "experts (E)", ("ep", "etp"), lambda at: _experts_of(at["ep"], of_rank, experts)),
    )
    lines = max(len(_inside(each)) + 1 + (each is view) for each, *_ in halves)
    panel = _Panel(mesh, outer, frames, lines)
    picture, drawing = canvas(2 * (panel.height + 0.62) - 0.08, title or finding(mesh, view))
    for number, (each, name, held, split, holds) in enumerate(halves):
        top = number * (panel.height + 0.62)
        several = [axis for axis in each.names if each.size(axis) > 1]
        sizes = " x ".join(f"{_NAMES.get(axis, axis)} {each.size(axis)}" for axis in several)
        write(drawing, LEFT, top + 0.12, f"{name}: {sizes}", TEXT, Colour.INK, "left", fontweight="bold")
        panel.draw(drawing, top + 0.24, each, split, holds)
        write(drawing, LEFT, top + panel.height + 0.36, f"same colour in a stage: same {held}", SMALL, ha="left")
    return picture


def finding(mesh: Mesh, view: Mesh) -> str:
    """The default title: how many copies there are of a block of a matrix, and of an expert, in a stage."""
    dense = len(mesh.ranks) // mesh.size("pp") // mesh.size(*TENSOR)
    sparse = len(view.ranks) // view.size("pp") // view.size("ep", "etp")
    return (
        f"{len(mesh.ranks)} ranks, seen twice: {dense} of a stage hold the same block of a matrix, and "
        f"{sparse} the same experts"
    )


def _inside(mesh: Mesh) -> list[str]:
    """Axes within a frame, along which there are several ranks."""
    return [axis for axis in mesh.names if axis not in ("pp", "dp_replicate") and mesh.size(axis) > 1]


def _experts_of(place: int, of_rank: int, experts: int) -> str:
    first, last = place * of_rank, min((place + 1) * of_rank, experts) - 1
    if first > last:
        return "none"
    return f"E {first}" if first == last else f"E {first}-{last}"


class _Panel:
    """Where frames and boxes are, in both views."""

    def __init__(self, mesh: Mesh, outer: list[str], frames: int, lines: int) -> None:
        self.mesh, self.outer, self.frames = mesh, outer, frames
        self.inside = len(mesh.ranks) // frames
        self.across = min(ACROSS, self.inside)
        self.width = (WIDTH - 2 * LEFT - (frames - 1) * GAP) / frames
        self.pitch = min(MOST_PITCH, (self.width - 2 * PAD) / self.across)
        self.box = self.pitch - 0.03, lines * LINE + 0.06
        self.rows = -(-self.inside // self.across)
        self.height = 0.2 + 2 * PAD + self.rows * (self.box[1] + 0.04)

    def draw(
        self,
        drawing: Axes,
        top: float,
        mesh: Mesh,
        split: tuple[str, ...],
        holds: Callable[[Mapping[str, int]], str],
    ) -> None:
        parts = prod(mesh.size(axis) for axis in split)
        for frame in range(self.frames):
            left = LEFT + frame * (self.width + GAP)
            at = mesh.coordinates(frame * self.inside)
            name = ", ".join(f"{_WORDS[axis]} {at[axis]}" for axis in self.outer) or "all ranks"
            write(drawing, left + 0.03, top + 0.09, name, SMALL, Colour.FAINT, "left")
            corner = {"boxstyle": "round,pad=0,rounding_size=0.05", "zorder": 1}
            wide = 2 * PAD + self.across * self.pitch
            edge = FancyBboxPatch((left, top + 0.2), wide, self.height - 0.2, **corner)
            edge.set(facecolor="#F5F5F5", edgecolor=Colour.LINE, linewidth=1)
            drawing.add_patch(edge)
            for place in range(self.inside):
                rank = frame * self.inside + place
                here = mesh.coordinates(rank)
                part = 0
                for axis in split:
                    part = part * mesh.size(axis) + here[axis]
                face = colour_of(part, parts) if parts > 1 else SAME
                words = [f"{SHORT.get(axis, axis)} {here[axis]}" for axis in _inside(mesh)]
                self._rank(drawing, left, top + 0.2, place, rank, [*words, *filter(None, [holds(here)])], face)

    def _rank(self, drawing: Axes, left: float, top: float, place: int, rank: int, words: list[str], face: str) -> None:
        row, column = divmod(place, self.across)
        (wide, high), ink = self.box, ink_on(face)
        x, y = left + PAD + column * self.pitch, top + PAD + row * (high + 0.04)
        drawing.add_patch(Rectangle((x, y), wide, high, facecolor=face, edgecolor="white", linewidth=1, zorder=3))
        for line, each in enumerate([str(rank), *words]):
            weight = "bold" if line == 0 else "normal"
            write(drawing, x + wide / 2, y + 0.11 + line * LINE, each, SMALL, ink, fontweight=weight)


_WORDS = {"pp": "stage", "dp_replicate": "replica"}
_NAMES = {"tp_head": "tp", "tp_copy": "tp (copies)"}
