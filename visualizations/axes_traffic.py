"""What talks to what: a square for each pair of ranks of a real run, in the colour of the axis along which they stand.

A sender has a row, a receiver a column, as in `traffic`. Axes differ by orders of magnitude, and so squares grow with
the logarithm of their bytes; beside them bars say what each axis carries, and how much of it leaves a node.
"""

from collections.abc import Mapping
from math import ceil, log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.composition.lab.by_axis import matrices_by_axis
from reference.errors import BadInput, require_sizes
from reference.mesh import Mesh
from reference.trace import Trace

from .mesh import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, bytes_text, canvas, fitted, width_of, write

LEFT, HEAD, FOOT = 0.75, 0.45, 0.4  # inches
MOST_CELL, MATRIX = 0.36, 3.6
BARS = 0.62  # from the matrix to the bars
MARKERS = ("s", "o", "D", "^", "P", "v")  # by axis, for readers who see no colour


def draw(trace: Trace, mesh: Mesh, ranks_per_node: int = 8, *, title: str = "") -> Picture:
    """The messages of a run, and their bytes by axis.

    Args:
        trace: of as many ranks as the mesh has, at most 32.
        mesh: how they are arranged.
        ranks_per_node: ranks 0, 1, ... fill nodes in order; lines mark where nodes end.
        title: the finding; by default the share of each axis.

    Raises:
        BadInput: if the mesh is of other ranks than the trace, or if nothing was sent.
    """
    require_sizes(ranks_per_node=ranks_per_node)
    if len(mesh.ranks) != trace.world_size:
        raise BadInput(f"the mesh arranges {len(mesh.ranks)} ranks, and the trace is of {trace.world_size}")
    sent = {axis: matrix for axis, matrix in matrices_by_axis(trace, mesh).items() if matrix.any()}
    if not sent:
        raise BadInput("there is nothing to draw: no rank has sent anything")
    ranks = trace.world_size
    cell = min(MOST_CELL, MATRIX / ranks)
    height = HEAD + max(ranks * cell, 0.62 * len(sent)) + FOOT
    picture, drawing = canvas(height, title or finding(sent))
    _frame(drawing, ranks, cell, ranks_per_node)
    note = "size: logarithm of bytes" + ("     hatched: between nodes" if ranks > ranks_per_node else "")
    write(drawing, LEFT, height - FOOT / 2, note, SMALL, ha="left")
    largest, smallest = (choose(int(choose(m[m > 0])) for m in sent.values()) for choose in (max, min))
    for number, (axis, matrix) in enumerate(sent.items()):
        marker = MARKERS[number % len(MARKERS)]
        for src, dst in np.argwhere(matrix):
            share = log10(matrix[src, dst] / smallest + 1) / log10(largest / smallest + 1)
            place = (LEFT + (dst + 0.5) * cell, HEAD + (src + 0.5) * cell)
            size = 72 * cell * (0.3 + 0.5 * share) * (0.85 if marker == "D" else 1)
            drawing.plot(*place, marker, markersize=size, color=colour_of(axis, mesh), markeredgewidth=0, zorder=3)
    _bars(drawing, LEFT + ranks * cell + BARS, sent, mesh, ranks_per_node)
    return picture


def finding(sent: Mapping[str, np.ndarray]) -> str:
    """The default title: what share of all bytes each axis carries."""
    total = sum(int(matrix.sum()) for matrix in sent.values())
    shares = sorted(((int(matrix.sum()) / total, axis) for axis, matrix in sent.items()), reverse=True)
    words = [f"{axis} {share:.0%}" for share, axis in shares]
    return f"Of {bytes_text(total)} that were sent: {', '.join(words)}"


def _frame(drawing: Axes, ranks: int, cell: float, ranks_per_node: int) -> None:
    every = ceil((width_of(str(ranks), SMALL, "normal") + 0.05) / cell)  # of so many ranks one has its number
    words = {"fontsize": SMALL, "va": "center", "zorder": 5}
    for rank in range(ranks):
        at = (rank + 0.5) * cell
        if rank % every == 0:
            drawing.text(LEFT - 0.08, HEAD + at, f"from {rank}", color=Colour.INK, ha="right", **words)
            drawing.text(LEFT + at, HEAD - 0.09, str(rank), color=Colour.FAINT, ha="center", **words)
        for other in range(ranks):
            place = (LEFT + rank * cell, HEAD + other * cell)
            drawing.add_patch(Rectangle(place, cell, cell, facecolor="white", edgecolor="#E6E6E6", lw=0.6, zorder=1))
    drawing.text(LEFT, HEAD - 0.27, "to", color=Colour.FAINT, ha="left", **words)
    line = {"color": Colour.INK, "linewidth": 1.2, "zorder": 4}
    for edge in range(ranks_per_node, ranks, ranks_per_node):
        drawing.plot([LEFT, LEFT + ranks * cell], [HEAD + edge * cell] * 2, **line)
        drawing.plot([LEFT + edge * cell] * 2, [HEAD, HEAD + ranks * cell], **line)


def _sizes(matrix: np.ndarray, leaves: np.ndarray, several: bool) -> str:
    """What an axis carries, and where there are several nodes, how much of it leaves one."""
    total, away = int(matrix.sum()), int((matrix * leaves).sum())
    part = "nothing" if not away else "all of it" if away == total else bytes_text(away)
    return bytes_text(total) + (f", {part} between nodes" if several else "")


def _bars(drawing: Axes, left: float, sent: Mapping[str, np.ndarray], mesh: Mesh, ranks_per_node: int) -> None:
    """For each axis the bytes of all ranks, the part that leaves a node hatched."""
    node = np.arange(len(mesh.ranks)) // ranks_per_node
    leaves = node[:, None] != node[None, :]
    sizes = {axis: _sizes(matrix, leaves, len(mesh.ranks) > ranks_per_node) for axis, matrix in sent.items()}
    most, room = max(int(matrix.sum()) for matrix in sent.values()), WIDTH - left - 0.15
    beside = all(width_of(f"{axis}: {words}", TEXT, "normal") <= room - 0.18 for axis, words in sizes.items())
    for number, (axis, matrix) in enumerate(sorted(sent.items(), key=lambda item: -item[1].sum())):
        y, total, away = HEAD + 0.62 * number, int(matrix.sum()), int((matrix * leaves).sum())
        colour, marker = colour_of(axis, mesh), MARKERS[list(sent).index(axis) % len(MARKERS)]
        drawing.plot(left + 0.05, y, marker, markersize=7, color=colour, zorder=3)
        name = f"{axis}: {sizes[axis]}" if beside else fitted(axis, room - 0.18)
        write(drawing, left + 0.18, y, name, TEXT, Colour.INK, ha="left")
        if not beside:
            write(drawing, left, y + 0.39, sizes[axis], SMALL, ha="left")
        bar = {"height": 0.16, "linewidth": 0.8, "edgecolor": colour, "zorder": 2}
        drawing.add_patch(Rectangle((left, y + 0.14), max(room * total / most, 0.01), facecolor=colour, **bar))
        if away:
            hatched = {**bar, "edgecolor": "white" if colour == Colour.INK else Colour.INK, "hatch": "////"}
            drawing.add_patch(Rectangle((left, y + 0.14), room * away / most, facecolor=colour, **hatched))
