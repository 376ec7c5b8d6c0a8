"""Which rank computes what of attention, and when: the matrix of a mask, coloured by the rank that computes each pair.

Queries run down and keys to the right, both in the order of the sequence. A step of a ring is a panel: full colours in
dark frames are what ranks compute in it, tints what they have computed before, white what is still to come, and hatched
what no rank ever computes, because the mask forbids it.

All of it follows from the pieces that the ranks themselves compute (`reference.context_parallel.tokens.pieces`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from reference.context_parallel.layouts import Layout
from reference.context_parallel.tokens import CAUSAL, Mask, pieces
from reference.errors import BadInput

from .context_work import DONE, bars, finding, steps_of
from .player import Player
from .rank_colours import colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, fits, ink_on, tint, write

MOST = 64  # tokens, of which a cell can still be seen
ACROSS = 4  # panels in a row
GRID = "#CCCCCC"
PAUSE = 1200  # milliseconds between two steps


@dataclass(frozen=True)
class Part:
    """Some pairs that one rank computes in one step of a ring.

    Attributes:
        step, rank: when, and which.
        cells: (query, key), by their positions in the sequence.
    """

    step: int
    rank: int
    cells: tuple[tuple[int, int], ...]


def parts(layout: Layout, mask: Mask = CAUSAL) -> Iterator[Part]:
    """What each rank computes in each step of a ring, piece by piece."""
    n, where = layout.ranks, [layout.positions(rank).tolist() for rank in range(layout.ranks)]
    for step in range(n):
        for rank in range(n):
            source = (rank - step) % n
            for piece in pieces(layout.tokens[rank], layout.tokens[source], mask):
                seen = piece.mask().nonzero().tolist()
                first, last = piece.queries[0], piece.keys[0]
                cells = [(where[rank][first + q], where[source][last + k]) for q, k in seen]
                yield Part(step, rank, tuple(cells))


def draw(layout: Layout, mask: Mask = CAUSAL, *, title: str = "") -> Picture:
    """All steps of a ring, from left to right.

    Args:
        layout: who holds which tokens, 64 of them at most.
        mask: who sees whom.
        title: the finding; by default how many pairs the slowest ranks make the others wait for.

    Raises:
        BadInput: if there are too many tokens to see.
    """
    _require_visible(layout)
    made, n = list(parts(layout, mask)), layout.ranks
    columns = min(n, ACROSS)
    pitch = (WIDTH - 0.35) / columns
    side, rows = min(pitch - 0.15, 2.6), -(-n // columns)
    picture, axes = canvas(rows * (side + 0.5) + 0.42, title or finding(layout, mask))
    for step in range(n):
        row, column = divmod(step, columns)
        left, top = 0.3 + column * pitch, 0.32 + row * (side + 0.5)
        write(axes, left, top - 0.14, step_text(layout, step, mask), SMALL, Colour.INK, ha="left")
        _panel(axes, left, top, side, layout, made, step)
        if not column:
            write(axes, left - 0.14, top + side / 2, "queries", SMALL, rotation=90)
    write(axes, 0.3 + side / 2, rows * (side + 0.5) - 0.04, "keys", SMALL)
    _legend(axes, rows * (side + 0.5) + 0.22, n)
    return picture


def draw_step(layout: Layout, step: int, mask: Mask = CAUSAL) -> Picture:
    """One step: its panel, and beside it for each rank what it has computed, computes, and waits for."""
    _require_visible(layout)
    made, n, side = list(parts(layout, mask)), layout.ranks, 3.4
    picture, axes = canvas(side + 0.85, f"Step {step}: {_spread(layout, step, mask)} for each rank")
    write(axes, 0.16, 0.1 + side / 2, "queries", SMALL, rotation=90)
    write(axes, 0.3 + side / 2, side + 0.26, "keys", SMALL)
    _panel(axes, 0.3, 0.1, side, layout, made, step)
    left, row = 0.3 + side + 0.5, min(0.42, side / (n + 1))
    write(axes, left, 0.1 + 0.5 * row, "computes, and waits (grey), in pairs", SMALL, Colour.INK, ha="left")
    bars(axes, left, 0.1 + row, row, WIDTH - left - 0.25, [steps_of(layout, each, mask) for each in range(n)], step)
    _legend(axes, side + 0.6, n)
    return picture


def play(layout: Layout, mask: Mask = CAUSAL, *, title: str = "") -> Player:
    """The steps of a ring, one at a time. Arguments as for `draw`."""
    n = layout.ranks

    def frame(step: int) -> bytes:
        return draw_step(layout, step, mask).png()

    def caption(step: int) -> str:
        return f"step {step} of {n - 1}"

    return Player(n, frame, caption, PAUSE, draw(layout, mask, title=title))


def draw_tokens(layouts: Mapping[str, Layout], *, title: str) -> Picture:
    """Which rank holds which token: a row of numbered boxes for each layout.

    Args:
        layouts: by name, of the same tokens.
        title: the finding.

    Raises:
        BadInput: if there is no layout, or there are too many tokens to see.
    """
    if not layouts:
        raise BadInput("there is no layout to draw: give one or more, by name")
    for layout in layouts.values():
        _require_visible(layout)
    left, row = 1.1, 0.42
    picture, axes = canvas(row * len(layouts) + 0.3, title)
    for place, (name, layout) in enumerate(layouts.items()):
        write(axes, left - 0.1, row * (place + 0.45), name, TEXT, Colour.INK, ha="right")
        size = (WIDTH - left - 0.15) / layout.sequence
        for rank in range(layout.ranks):
            face = colour_of(rank, layout.ranks)
            for position in _held(layout, rank):
                _cell(axes, left + position * size, row * place + 0.05, size, 0.3, face, str(rank))
    write(axes, left, row * len(layouts) + 0.1, "first token", SMALL, ha="left")
    write(axes, WIDTH - 0.15, row * len(layouts) + 0.1, "last token", SMALL, ha="right")
    return picture


def step_text(layout: Layout, step: int, mask: Mask = CAUSAL) -> str:
    """A step, and the least and the most that a rank has to do in it."""
    return f"step {step}: {_spread(layout, step, mask)}"


def _spread(layout: Layout, step: int, mask: Mask) -> str:
    each = steps_of(layout, step, mask)
    return f"{max(each)} pairs" if min(each) == max(each) else f"{min(each)} to {max(each)} pairs"


def _require_visible(layout: Layout) -> None:
    if layout.sequence > MOST:
        raise BadInput(f"{layout.sequence} tokens are more than can be seen: draw {MOST} or fewer")


def _held(layout: Layout, rank: int) -> Sequence[int]:
    """Positions of a rank's tokens, without padding."""
    return [position for position in layout.positions(rank).tolist() if position < layout.sequence]


def _panel(axes: Axes, left: float, top: float, side: float, layout: Layout, made: Sequence[Part], step: int) -> None:
    """The matrix as it is in a step."""
    size = side / layout.sequence
    axes.add_patch(Rectangle((left, top), side, side, facecolor="#F4F4F4", edgecolor=Colour.LINE, hatch="////", lw=0.5))
    for part in made:
        face = colour_of(part.rank, layout.ranks)
        face = "white" if part.step > step else face if part.step == step else tint(face, DONE)
        words = str(part.rank) if part.step == step else ""
        edge = Colour.INK if part.step == step else GRID
        places = [(left + key * size, top + query * size) for query, key in part.cells]
        look = {"facecolor": face, "edgecolor": edge, "linewidth": 0.4 if size > 0.08 else 0.2}
        axes.add_collection(PatchCollection([Rectangle(place, size, size) for place in places], **look))
        for x, y in places if words and fits(words, size, size) else ():
            write(axes, x + size / 2, y + size / 2, words, SMALL, ink_on(face), va="center_baseline")
        if words and not fits(words, size, size):
            _number(axes, left, top, size, part, face)


def _cell(axes: Axes, x: float, y: float, wide: float, high: float, face: str, words: str) -> None:
    """A box, with words if they fit."""
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=face, edgecolor=GRID, linewidth=0.4))
    if words and fits(words, wide, high):
        write(axes, x + wide / 2, y + high / 2, words, SMALL, ink_on(face), va="center_baseline")


def _number(axes: Axes, left: float, top: float, size: float, part: Part, face: str) -> None:
    """One number in the middle of a part whose cells are too small for it, if the part is a block that has room."""
    queries, keys = ({cell[i] for cell in part.cells} for i in (0, 1))
    high, wide = (max(each) - min(each) + 1 for each in (queries, keys))
    if (high, wide) != (len(queries), len(keys)) or not fits(str(part.rank), wide * size / 2, high * size / 2):
        return
    whole = len(part.cells) == high * wide
    x, y = (0.5, 0.5) if whole else (0.36, 0.64)  # of a triangle, its heavy corner
    middle = left + (min(keys) + x * wide) * size, top + (min(queries) + y * high) * size
    write(axes, *middle, str(part.rank), SMALL, ink_on(face), va="center_baseline")


def _legend(axes: Axes, y: float, n: int) -> None:
    """The colours of ranks, and what else there is."""
    write(axes, 0.3, y, "rank", SMALL, Colour.INK, ha="left")
    x = 0.65
    for rank in range(n):
        _cell(axes, x, y - 0.09, 0.24, 0.18, colour_of(rank, n), str(rank))
        x += 0.27
    look = {"facecolor": "#F4F4F4", "edgecolor": Colour.LINE, "hatch": "////", "linewidth": 0.5}
    axes.add_patch(Rectangle((x + 0.2, y - 0.09), 0.24, 0.18, **look))
    write(axes, x + 0.52, y, "hidden by the mask", SMALL, Colour.INK, ha="left")
    axes.add_patch(Rectangle((x + 1.95, y - 0.09), 0.24, 0.18, facecolor="white", edgecolor=GRID, linewidth=0.6))
    write(axes, x + 2.27, y, "still to come", SMALL, Colour.INK, ha="left")
