"""What axes of published layouts carry: for each a bar, as long as a rank's link is busy with it in a step.

Bars of one layout have one scale. What a step takes, where that was published, stands above them.
"""

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from reference.composition.lab.published_layouts import PublishedLayout, Said, said_in_a_step
from reference.errors import BadInput

from .mesh import AXIS_COLOURS
from .style import SMALL, TEXT, WIDTH, Colour, Picture, bytes_text, canvas, seconds_text, write

LEFT, RIGHT, LINE, HEAD, GAP = 2.75, 2.2, 0.27, 0.3, 0.16  # inches
SHORTEST = 0.02  # of a bar


def draw(layouts: Sequence[PublishedLayout], *, title: str = "") -> Picture:
    """What a rank of each layout says in a step.

    Args:
        layouts: of which a step is known.
        title: the finding; by default which axis is busiest, for each.

    Raises:
        BadInput: if there is none, or nothing is known of a step of one.
    """
    rows = [(layout, said_in_a_step(layout)) for layout in layouts]
    if not rows or not all(said for _, said in rows):
        raise BadInput("there is nothing to draw: of a step of some layout nothing is known")
    height = sum(HEAD + LINE * len(said) + GAP for _, said in rows) + 0.3
    picture, drawing = canvas(height, title or finding(rows))
    top, room = 0.0, WIDTH - LEFT - RIGHT
    for layout, said in rows:
        most = max(row.seconds for row in said)
        axes = " x ".join(f"{axis} {size}" for axis, size in layout.axes.items() if size > 1)
        step = f"; a step takes {seconds_text(layout.seconds)}" if layout.seconds else ""
        words = f"{layout.name}: {layout.ranks:,} ranks, {axes}{step}"
        write(drawing, 0.12, top + 0.14, words, TEXT, Colour.INK, "left", fontweight="bold")
        for number, row in enumerate(sorted(said, key=lambda row: -row.seconds)):
            y = top + HEAD + LINE * number
            write(drawing, LEFT - 0.08, y + LINE / 2, f"{row.axes}: {row.what}", SMALL, Colour.INK, "right")
            wide = max(room * row.seconds / most, SHORTEST)
            face = AXIS_COLOURS.get(row.axes, AXIS_COLOURS["data"])
            style = {"facecolor": face, "edgecolor": Colour.INK, "linewidth": 0.6, "zorder": 3}
            style |= {"hatch": "////"} if row.leaving else {}
            drawing.add_patch(Rectangle((LEFT, y + 0.05), wide, LINE - 0.1, **style))
            said_words = f"{seconds_text(row.seconds)}, {bytes_text(row.bytes)}"
            write(drawing, LEFT + wide + 0.08, y + LINE / 2, said_words, SMALL, Colour.INK, "left")
        top += HEAD + LINE * len(said) + GAP
    note = "length: seconds that a rank's link is busy with it, a scale for each layout     hatched: between nodes"
    write(drawing, 0.12, height - 0.15, note, SMALL, ha="left")
    return picture


def finding(rows: Sequence[tuple[PublishedLayout, list[Said]]]) -> str:
    """The default title."""
    busiest = {layout.name: max(said, key=lambda row: row.seconds).axes for layout, said in rows}
    return "Which axis keeps its link busy longest: " + "; ".join(f"{axis} in {name}" for name, axis in busiest.items())
