"""How much each rank sends to each: a square for each pair of ranks, side by side for several programs.

A sender has a row, a receiver a column. Within a node links are fast; lines mark where nodes end, and what crosses them
is drawn darker and counted, because that is what the slow links must carry.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.errors import BadInput, require_sizes
from reference.trace import Trace

from .style import SMALL, TEXT, WIDTH, Colour, Picture, bytes_text, canvas, fitted, write

LEFT, HEAD, FOOT, GAP = 0.62, 0.62, 0.7, 0.42  # inches
CAPTION = 1.42  # inches that the words below a matrix need
WITHIN, BETWEEN = "#F6D9A0", Colour.COMMUNICATION
LEAST_CELL, MOST_CELL = 0.14, 0.36  # of which the smallest has room for the number of its rank
LEAST_SIDE = 0.015  # of a square, however few its bytes: it says that there are some


def matrix(trace: Trace) -> np.ndarray:
    """Bytes from rank (row) to rank (column)."""
    sent = np.zeros((trace.world_size, trace.world_size), dtype=np.int64)
    for message in trace.messages:
        sent[message.src, message.dst] += message.bytes
    return sent


def between_nodes(trace: Trace, ranks_per_node: int) -> np.ndarray:
    """Bytes from each rank to ranks of other nodes: what its port to the network carries."""
    node = np.arange(trace.world_size) // ranks_per_node
    return (matrix(trace) * (node[:, None] != node[None, :])).sum(axis=1)


def draw(traces: Mapping[str, Trace], ranks_per_node: int, *, title: str = "") -> Picture:
    """One matrix for each program, as many as there is room for: four of up to 10 ranks, one of up to 49.

    Args:
        traces: by name, of as many ranks each.
        ranks_per_node: ranks 0, 1, ... fill nodes in order.
        title: the finding; by default what the busiest port to other nodes carries.

    Raises:
        BadInput: if there is no trace, if traces are of different numbers of ranks, or if there are too many to fit.
    """
    require_sizes(ranks_per_node=ranks_per_node)
    sizes = sorted({trace.world_size for trace in traces.values()})
    if len(sizes) != 1:
        raise BadInput(f"traces of as many ranks each are drawn side by side, and these are of {sizes or 'none'}")
    (ranks,) = sizes
    room = (WIDTH - LEFT) / len(traces) - GAP
    cell = min(MOST_CELL, room / ranks)
    if room < CAPTION or cell < LEAST_CELL:
        raise BadInput(f"{len(traces)} x {ranks} ranks do not fit side by side in one picture: draw fewer")
    pitch = max(ranks * cell, CAPTION) + GAP
    picture, axes = canvas(HEAD + ranks * cell + FOOT, title or finding(traces, ranks_per_node))
    largest = max(int(matrix(trace).max()) for trace in traces.values())
    for place, (name, trace) in enumerate(traces.items()):
        left = LEFT + place * pitch
        _panel(axes, left, cell, trace, ranks_per_node, largest, labels=place == 0)
        busiest = int(between_nodes(trace, ranks_per_node).max())
        write(
            axes,
            left,
            HEAD - 0.42,
            fitted(name, pitch - GAP / 2, TEXT, "bold"),
            TEXT,
            Colour.INK,
            weight="bold",
            ha="left",
        )
        crossing = f"all that crosses: {bytes_text(_crossing(trace, ranks_per_node))}"
        write(axes, left, HEAD + ranks * cell + 0.16, f"busiest port: {bytes_text(busiest)}", SMALL, ha="left")
        write(axes, left, HEAD + ranks * cell + 0.33, crossing, SMALL, ha="left")
    words = "area: bytes     dark: between nodes     busiest port: of the rank that sends most to other nodes"
    write(axes, LEFT, HEAD + ranks * cell + 0.56, words, SMALL, ha="left")
    return picture


def finding(traces: Mapping[str, Trace], ranks_per_node: int) -> str:
    """The default title: the busiest port to other nodes, program by program."""
    words = [f"{name} {bytes_text(int(between_nodes(trace, ranks_per_node).max()))}" for name, trace in traces.items()]
    return f"The busiest port to other nodes carries: {', '.join(words)}"


def _crossing(trace: Trace, ranks_per_node: int) -> int:
    return int(between_nodes(trace, ranks_per_node).sum())


def _panel(axes: Axes, left: float, cell: float, trace: Trace, ranks_per_node: int, largest: int, labels: bool) -> None:
    sent, ranks = matrix(trace), trace.world_size
    for src in range(ranks):
        y = HEAD + src * cell
        if labels:
            write(axes, left - 0.08, y + cell / 2, f"from {src}", SMALL, Colour.INK, ha="right")
        write(axes, left + (src + 0.5) * cell, HEAD - 0.09, str(src), SMALL, ha="center")
        for dst in range(ranks):
            inside = src // ranks_per_node == dst // ranks_per_node
            _square(axes, left + dst * cell, y, cell, int(sent[src, dst]), inside, largest)
    write(axes, left, HEAD - 0.23, "to", SMALL, ha="left")
    for edge in range(ranks_per_node, ranks, ranks_per_node):
        line = {"color": Colour.INK, "linewidth": 1.2, "zorder": 4}
        axes.plot([left, left + ranks * cell], [HEAD + edge * cell] * 2, **line)
        axes.plot([left + edge * cell] * 2, [HEAD, HEAD + ranks * cell], **line)


def _square(axes: Axes, x: float, y: float, cell: float, size: int, inside: bool, largest: int) -> None:
    """An empty cell, with a filled square in it whose area grows with the bytes."""
    axes.add_patch(Rectangle((x, y), cell, cell, facecolor="white", edgecolor="#E6E6E6", linewidth=0.6, zorder=1))
    if size:
        side = max(LEAST_SIDE, 0.92 * cell * (size / largest) ** 0.5)
        place = (x + (cell - side) / 2, y + (cell - side) / 2)
        axes.add_patch(Rectangle(place, side, side, facecolor=WITHIN if inside else BETWEEN, zorder=2))
