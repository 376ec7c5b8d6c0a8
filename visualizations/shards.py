"""Where the cuts go: tensors in one flat row, and the shards that ranks hold of it.

Shards stand below each other, rank 0 on top, so the row reads like a text: what ends a line continues in the next one.
"""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from .style import SMALL, WIDTH, Colour, Picture, canvas

LINE, LEFT, RIGHT = 0.34, 0.62, 0.1  # inches
LETTER = 0.079  # inches
SHADES = ("#F0E442", "#F8F2A0")  # of parameters, in turns: neighbours differ

Piece = tuple[int, int, int]
"""(index of the tensor, begin, end): elements [begin, end) of it."""


def draw(tensors: Mapping[str, int], shards: Sequence[Sequence[Piece]], *, title: str = "") -> Picture:
    """A line for each rank.

    Args:
        tensors: elements of each, by name, in the order of the row.
        shards: by rank, the pieces of its shard, in order; what they leave of the longest shard is padding.
        title: the finding; by default how many tensors are cut.
    """
    length = max(sum(end - begin for _, begin, end in own) for own in shards)
    inch = (WIDTH - LEFT - RIGHT) / max(length, 1)
    picture, axes = canvas(len(shards) * LINE + 0.1, title or finding(tensors, shards))
    names = list(tensors)
    words = {"va": "center", "fontsize": SMALL, "color": Colour.INK}
    for rank, own in enumerate(shards):
        y, at = rank * LINE, 0
        axes.text(LEFT - 0.08, y + 0.44 * LINE, f"rank {rank}", ha="right", **words)
        for index, begin, end in own:
            x, width = LEFT + at * inch, (end - begin) * inch
            axes.add_patch(Rectangle((x, y), width, 0.88 * LINE, facecolor=SHADES[index % 2], edgecolor="white"))
            label = label_of(names[index], begin, end, tensors[names[index]], int(width / LETTER))
            axes.text(x + width / 2, y + 0.44 * LINE, label, ha="center", **words)
            at += end - begin
        if at < length:
            rest = Rectangle((LEFT + at * inch, y), (length - at) * inch, 0.88 * LINE)
            rest.set(facecolor="white", edgecolor=Colour.LINE, hatch="////", linewidth=0)
            axes.add_patch(rest)
    return picture


def finding(tensors: Mapping[str, int], shards: Sequence[Sequence[Piece]]) -> str:
    """The default title."""
    owners = [
        {rank for rank, own in enumerate(shards) for i, _, _ in own if i == index} for index in range(len(tensors))
    ]
    cut = sum(len(ranks) > 1 for ranks in owners)
    return f"Of {len(tensors)} tensors, {cut} {'belongs' if cut == 1 else 'belong'} to more than one rank"


def label_of(name: str, begin: int, end: int, size: int, letters: int) -> str:
    """The name, with an ellipsis where a piece continues, as much of it as there is room for."""
    label = f"{'… ' if begin else ''}{name}{' …' if end < size else ''}"
    return next((words for words in (label, name) if len(words) <= letters), "")
