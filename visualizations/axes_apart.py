"""What talks to what, an axis at a time: a small matrix for each, of all the bytes of a real run.

A sender has a row, a receiver a column. Where several axes join the same two ranks, as those of experts do, one matrix
for all would let them cover each other. The darker a square, the more bytes, on a logarithmic scale for all.
"""

from collections.abc import Mapping
from math import log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.errors import BadInput, require_sizes

from .axes_traffic import finding
from .mesh import AXIS_COLOURS
from .style import SMALL, TEXT, WIDTH, Colour, Picture, bytes_text, canvas, tint, write

LEFT, ACROSS, GAP, HEAD, BELOW = 0.35, 4, 0.4, 0.5, 0.42  # inches; matrices in a row
LIGHTEST = 0.7  # white in the colour of the fewest bytes


def draw(sent: Mapping[str, np.ndarray], ranks_per_node: int = 8, *, title: str = "") -> Picture:
    """A matrix for each axis.

    Args:
        sent: by axis, bytes from rank (row) to rank (column), as `reference.composition.lab.by_axis` finds them.
        ranks_per_node: ranks 0, 1, ... fill nodes in order; lines mark where nodes end.
        title: the finding; by default the share of each axis.

    Raises:
        BadInput: if nothing was sent.
    """
    require_sizes(ranks_per_node=ranks_per_node)
    sent = {axis: matrix for axis, matrix in sent.items() if matrix.any()}
    if not sent:
        raise BadInput("there is nothing to draw: no rank has sent anything")
    side = (WIDTH - LEFT - 0.15 - (ACROSS - 1) * GAP) / ACROSS
    rows = -(-len(sent) // ACROSS)
    picture, drawing = canvas(rows * (HEAD + side + BELOW) + 0.1, title or finding(sent))
    counts = np.concatenate([matrix[matrix > 0] for matrix in sent.values()])
    least, most = int(counts.min()), int(counts.max())
    for number, (axis, matrix) in enumerate(sorted(sent.items(), key=lambda item: -item[1].sum())):
        row, column = divmod(number, ACROSS)
        left, top = LEFT + column * (side + GAP), row * (HEAD + side + BELOW)
        write(drawing, left, top + 0.12, axis, TEXT, Colour.INK, "left", fontweight="bold")
        _matrix(drawing, left, top + HEAD, side, axis, matrix, ranks_per_node, (least, most))
        _words(drawing, left, top + HEAD + side, matrix, ranks_per_node)
    return picture


def _matrix(
    drawing: Axes,
    left: float,
    top: float,
    side: float,
    axis: str,
    matrix: np.ndarray,
    ranks_per_node: int,
    scale: tuple[int, int],
) -> None:
    ranks, (least, most) = len(matrix), scale
    cell, colour = side / ranks, AXIS_COLOURS.get(axis, str(Colour.INK))
    frame = {"facecolor": "white", "edgecolor": Colour.LINE, "linewidth": 1, "zorder": 1}
    drawing.add_patch(Rectangle((left, top), side, side, **frame))
    for src, dst in np.argwhere(matrix):
        share = log10(matrix[src, dst] / least + 1) / log10(most / least + 1)
        place, face = (left + dst * cell, top + src * cell), tint(colour, LIGHTEST * (1 - share))
        drawing.add_patch(Rectangle(place, cell, cell, facecolor=face, linewidth=0, zorder=2))
    for edge in range(ranks_per_node, ranks, ranks_per_node):
        line = {"color": Colour.INK, "linewidth": 0.8, "zorder": 3}
        drawing.plot([left, left + side], [top + edge * cell] * 2, **line)
        drawing.plot([left + edge * cell] * 2, [top, top + side], **line)
    for rank in (0, ranks - 1):
        write(drawing, left + (rank + 0.5) * cell, top - 0.1, str(rank), SMALL)
        write(drawing, left - 0.06, top + (rank + 0.5) * cell, str(rank), SMALL, ha="right")


def _words(drawing: Axes, left: float, top: float, matrix: np.ndarray, ranks_per_node: int) -> None:
    node = np.arange(len(matrix)) // ranks_per_node
    away = int((matrix * (node[:, None] != node[None, :])).sum())
    total = int(matrix.sum())
    write(drawing, left, top + 0.12, bytes_text(total), SMALL, Colour.INK, "left")
    part = "all" if away == total else bytes_text(away) if away else "none"
    write(drawing, left, top + 0.28, f"between nodes: {part}", SMALL, Colour.FAINT, "left")
