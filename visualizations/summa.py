"""SUMMA: a matrix product on a mesh of ranks where each has a block of everything (`reference.tensor_parallel.summa`).

Turn after turn, those who have a piece of A's panel send it along their row of the mesh, and those who have a piece of
B's panel along their column. What they give away is in their colours, what waits for its turn is pale.
"""

from math import lcm

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, fits, ink_on, write


def draw(mesh: tuple[int, int], m: int, k: int, n: int, *, title: str = "") -> Picture:
    """SUMMA's product on a mesh of ranks (`reference.tensor_parallel.summa`), panel after panel.

    Args:
        mesh: (r, c): how many rows and columns of ranks.
        m, k, n: A is [m, k], B is [k, n].
        title: the finding; by default what a rank holds, and what moves.
    """
    (r, c), panels = mesh, lcm(*mesh)
    words = title or (
        f"On a mesh of {r} × {c} each rank holds 1/{r * c} of everything: in {panels} turns a panel of A goes along "
        "the rows, one of B along the columns, and C stays where it is"
    )
    across = 2
    scale = (WIDTH - 0.2 - 0.35 * across) / across - 1.2
    scale = min(scale / (k + n + n), 1.0 / max(m, k))
    high = max(m, k) * scale + 0.72
    rows = -(-panels // across)
    picture, axes = canvas(rows * high + 0.1, words)
    for panel in range(panels):
        left, top = 0.1 + (panel % across) * WIDTH / across, (panel // across) * high
        _panel(axes, left, top, scale, mesh, (m, k, n), panel)
    return picture


def _panel(
    axes: Axes, left: float, top: float, scale: float, mesh: tuple[int, int], sizes: tuple[int, int, int], panel: int
) -> None:
    """One turn: C += (panel of A) (panel of B)."""
    (m, k, n), panels = sizes, lcm(*mesh)
    thick = k / panels
    write(axes, left, top + 0.1, f"turn {panel + 1} of {panels}", SMALL, Colour.FAINT, ha="left")
    y, x = top + 0.45, left + 0.05
    for name, rows, columns, strip in (
        ("A", m, k, (panel * thick, 0.0, thick, float(m))),
        ("B", k, n, (0.0, panel * thick, float(n), thick)),
        ("C", m, n, None),
    ):
        width = columns * scale
        write(axes, x + width / 2, y - 0.11, name, SMALL, Colour.INK, weight="bold")
        _grid(axes, x, y, rows * scale, width, mesh, pale=strip is not None)
        if strip is not None:
            column, row, wide, tall = (side * scale for side in strip)
            _strip(axes, x, y, (rows * scale, width), (column, row, wide, tall), mesh)
        write(axes, x + width / 2, y + rows * scale + 0.1, f"{rows}×{columns}", SMALL, Colour.FAINT)
        x += width + 0.42
        if name != "C":
            sign, size = ("×", TEXT + 2) if name == "A" else ("added\nto", SMALL)
            write(axes, x - 0.21, y + m * scale / 2, sign, size, Colour.INK)


def _grid(axes: Axes, x: float, y: float, height: float, width: float, mesh: tuple[int, int], pale: bool) -> None:
    """A block for each rank of the mesh."""
    r, c = mesh
    for i in range(r):
        for j in range(c):
            face = colour_of(i * c + j, r * c)
            place = (x + j * width / c, y + i * height / r)
            look = {"facecolor": face, "edgecolor": "white", "linewidth": 0.8, "alpha": 0.3 if pale else 1.0}
            axes.add_patch(Rectangle(place, width / c, height / r, **look))
            middle = (place[0] + width / c / 2, place[1] + height / r / 2)
            if not pale and fits(f"{r * c - 1}", width / c, height / r):
                write(axes, *middle, f"{i * c + j}", SMALL, ink_on(face))


def _strip(
    axes: Axes, x: float, y: float, whole: tuple[float, float], strip: tuple[float, float, float, float],
    mesh: tuple[int, int],
) -> None:  # fmt: skip
    """The panel whose turn it is: its owners in their colours, and arrows to those who get it."""
    (r, c), (height, width), (left, top, wide, tall) = mesh, whole, strip
    along_rows = tall > height * 0.99
    ranks = r if along_rows else c
    owner = int((left + wide / 2) / width * c) if along_rows else int((top + tall / 2) / height * r)
    for place in range(ranks):
        rank = place * c + owner if along_rows else owner * c + place
        face = colour_of(rank, r * c)
        if along_rows:
            box = (x + left, y + place * height / r, wide, height / r)
        else:
            box = (x + place * width / c, y + top, width / c, tall)
        axes.add_patch(Rectangle(box[:2], *box[2:], facecolor=face, edgecolor="white", linewidth=0.8, zorder=3))
        middle = (box[0] + box[2] / 2, box[1] + box[3] / 2)
        if fits(str(r * c - 1), *box[2:]):
            write(axes, *middle, str(rank), SMALL, ink_on(face))
        for way in (-1, 1):
            _broadcast(axes, box, (x, y, width, height), way, along_rows)
    axes.add_patch(
        Rectangle((x + left, y + top), wide, tall, fill=False, edgecolor=Colour.COMMUNICATION, linewidth=1.8, zorder=4)
    )


def _broadcast(
    axes: Axes, box: tuple[float, float, float, float], whole: tuple[float, float, float, float], way: int,
    along_rows: bool,
) -> None:  # fmt: skip
    """An arrow out of a panel to the edge of its matrix, if there is a rank to get it."""
    (x, y, wide, tall), (left, top, width, height) = box, whole
    if along_rows:
        start, end, across = (x if way < 0 else x + wide), (left if way < 0 else left + width), y + tall / 2
    else:
        start, end, across = (y if way < 0 else y + tall), (top if way < 0 else top + height), x + wide / 2
    if abs(end - start) < 0.1:
        return
    points = [(start, across), (end, across)] if along_rows else [(across, start), (across, end)]
    style = {"arrowstyle": "-|>,head_width=0.18,head_length=0.35", "color": Colour.COMMUNICATION, "linewidth": 1.4}
    axes.annotate("", points[1], points[0], arrowprops={**style, "shrinkA": 0, "shrinkB": 1}, zorder=4)
