"""A layer as it runs on all ranks: what each of them does, what is the same on all, and where they talk.

A lane for each rank; forward runs to the right, and below it backward runs to the left, so that each step stands under
its own, and each collective under the one that it is the backward of. Nothing here is assumed: steps were noted while a
block ran (`reference.tensor_parallel.lab.op_trace`), bytes are those of its trace, and grey is what came out equal, bit
by bit, on all ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from reference.tensor_parallel.lab.op_trace import LayerOp, OpKind
from reference.trace.activity import Doing

from .rank_colours import SAME, colour_of
from .style import SMALL, WIDTH, Colour, Picture, bytes_text, canvas, ink_on, width_of, write

Ranks = Sequence[Sequence[LayerOp]]
"""What each rank did, step by step. All did steps of the same kinds in the same order."""

LEFT, RIGHT, HEAD, GAP, FOOT = 0.92, 0.22, 0.78, 1.15, 1.25  # inches
LINE = 0.15  # inches, of the shapes below a band
BORDER, WORK, PRODUCT = 0.62, 0.8, 1.12  # how wide columns are, relative to each other
BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # behind words that lines would run through


@dataclass(frozen=True)
class Column:
    """A place of the block: a border of a region, or what is computed at a site."""

    site: str
    kind: OpKind  # of what happens here in forward


@dataclass(frozen=True)
class Place:
    """Where a column is drawn: from `left` to `right`, in inches."""

    left: float
    right: float

    @property
    def middle(self) -> float:
        """Inches."""
        return (self.left + self.right) / 2


def draw(ranks: Ranks, *, title: str = "") -> Picture:
    """The block's forward, and its backward below.

    Args:
        ranks: as `reference.tensor_parallel.lab.op_trace.of_block` returned them, `with_bytes`.
        title: the finding; by default how many collectives there are, and how much is the same on every rank.
    """
    t = len(ranks)
    lane = min(0.5, max(0.16, 1.0 / t))
    band = lane * t
    picture, axes = canvas(HEAD + 2 * band + GAP + FOOT, title or finding(ranks))
    places = _places(columns(ranks[0]))
    _names(axes, places)
    for doing, top, words, colour in (
        (Doing.FORWARD, HEAD, "forward →", Colour.FORWARD),
        (Doing.BACKWARD, HEAD + band + GAP, "← backward", Colour.BACKWARD),
    ):
        write(axes, 0.05, top - 0.08, words, SMALL, colour, ha="left", weight="bold")
        for rank in range(t):
            write(axes, LEFT - 0.1, top + (rank + 0.5) * lane, f"rank {rank}", SMALL, Colour.INK, ha="right")
            _flow(axes, places, top + (rank + 0.5) * lane, doing is Doing.FORWARD)
        _residual(axes, places, top, doing is Doing.FORWARD)
        computing = [column for column in places if not column.kind.is_collective]
        below = LINE * max(len({ranks[0][n].made for n in numbers}) for numbers in placed(ranks[0], doing).values())
        for column, numbers in placed(ranks[0], doing).items():
            _column(axes, places[column], [[own[n] for own in ranks] for n in numbers], top, lane)
            level = computing.index(column) % 2 if column in computing else 0  # neighbours stand on two levels
            _shapes(axes, places[column].middle, top + band + 0.12 + below * level, [ranks[0][n] for n in numbers])
    _legend(axes, HEAD + 2 * band + GAP + FOOT - 0.14, t)
    return picture


def finding(ranks: Ranks) -> str:
    """The default title."""
    counts = Counter(name for step in ranks[0] if (name := collective(step)))
    said = " and ".join(f"{count} {name}s" for name, count in sorted(counts.items())) or "no collectives"
    sent = bytes_text(sum(step.sent for step in ranks[0]))
    work = [number for number, step in enumerate(ranks[0]) if not step.kind.is_collective]
    alike = sum(is_same([own[number] for own in ranks]) for number in work)
    repeats = f"{alike}\u00a0of\u00a0{len(work)} steps are" if alike else "no step is"
    return f"A block on {len(ranks)} ranks: {said}, {sent} sent by each; {repeats} done alike on every rank"


def collective(step: LayerOp) -> str:
    """What was called at a border, known by its shapes; "" for nothing."""
    if not step.kind.is_collective:
        return ""
    if step.given == step.made:
        return "all-reduce" if step.kind is OpKind.SUM and step.sent else ""
    return "all-gather" if prod(step.made) > prod(step.given) else "reduce-scatter"


def is_same(steps: Sequence[LayerOp]) -> bool:
    """Whether all ranks made the same numbers. One rank alone has all there is, and shares nothing out."""
    return len({step.fingerprint for step in steps}) == 1


def columns(steps: Sequence[LayerOp]) -> list[Column]:
    """The places of a block, in the order of forward."""
    order = (Column(step.site, step.kind) for step in steps if step.doing is Doing.FORWARD)
    return list(dict.fromkeys(order))


def placed(steps: Sequence[LayerOp], doing: Doing) -> dict[Column, list[int]]:
    """Which steps of one direction stand in which column, by number, in the order in which they ran.

    A gather's backward is a sum, and the other way around: they share a column. What is gathered once more for the
    gradient of a weight stands with that.
    """
    found: dict[Column, list[int]] = {column: [] for column in columns(steps)}
    partner = {OpKind.GATHER: OpKind.SUM, OpKind.SUM: OpKind.GATHER}
    for number, step in enumerate(steps):
        if step.doing is not doing:
            continue
        kind = step.kind if doing is Doing.FORWARD else partner.get(step.kind, step.kind)
        column = Column(step.site, kind)
        found[column if column in found else Column(step.site, OpKind.PRODUCT)].append(number)
    return found


def shape_text(shape: Sequence[int]) -> str:
    """2×16×64"""
    return "×".join(map(str, shape))


def _places(order: Sequence[Column]) -> dict[Column, Place]:
    widths = [{OpKind.WORK: WORK, OpKind.PRODUCT: PRODUCT}.get(column.kind, BORDER) for column in order]
    unit, at, found = (WIDTH - LEFT - RIGHT) / sum(widths), LEFT, {}
    for column, width in zip(order, widths, strict=True):
        found[column] = Place(at, at + width * unit)
        at += width * unit
    return found


def _names(axes: Axes, places: dict[Column, Place]) -> None:
    for column, place in places.items():
        if not column.kind.is_collective:
            words = column.site.split("_")[-1].replace(", ", "\n")
            write(axes, place.middle, HEAD - 0.2, words, SMALL, Colour.INK, linespacing=0.95, va="bottom")


def _flow(axes: Axes, places: dict[Column, Place], y: float, forward: bool) -> None:
    """The line along which a rank's tensors go."""
    ends = (LEFT - 0.06, WIDTH - RIGHT + 0.04)
    start, stop = ends if forward else ends[::-1]
    style = {"arrowstyle": "-|>,head_length=3,head_width=1.6", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch((start, y), (stop, y), color=Colour.FAINT, zorder=1, **style))


def _residual(axes: Axes, places: dict[Column, Place], top: float, forward: bool) -> None:
    """x + f(x): what goes around each half of a block."""
    norms = [place for column, place in places.items() if column.site.endswith("norm")]
    adds = [place for column, place in places.items() if column.site.endswith("dropout")]
    cores = [place for column, place in places.items() if column.site in ("attention", "SwiGLU")]
    for norm, core, add in zip(norms, cores, adds, strict=True):
        left, right, high = norm.left + 0.02, add.right - 0.02, top - 0.08
        axes.plot([left, left, right, right], [top + 0.02, high, high, top + 0.02], color=Colour.FAINT, linewidth=0.9)
        axes.plot(right if forward else left, top + 0.01, marker="v", color=Colour.FAINT, markersize=3.5)
        write(axes, core.right, high, "+ x" if forward else "+ gradient", SMALL, Colour.FAINT, bbox=BOX)


def _column(axes: Axes, place: Place, steps: Sequence[Sequence[LayerOp]], top: float, lane: float) -> None:
    """What all ranks do at one place: `steps[i][rank]`. In backward time runs to the left."""
    left, right, height = place.left + 0.045, place.right - 0.045, lane * len(steps[0])
    boxes = [step for step in steps if not step[0].kind.is_collective]
    for step in steps:
        if step[0].kind.is_collective and not boxes:
            _border(axes, place.middle, 0.2, step, top, height)
        elif collective(step[0]):  # gathered again
            right -= 0.17
            _border(axes, right + 0.095, 0.15, step, top, height)
    boxes = _merged(boxes)
    if boxes and boxes[0][0].doing is Doing.BACKWARD:
        boxes = boxes[::-1]
    total = sum(step[0].made[-1] for step in boxes) if boxes[1:] and boxes[0][0].doing is Doing.FORWARD else 0
    room = right - left
    for step in boxes:
        width = room * (step[0].made[-1] / total if total else 1 / len(boxes))
        _boxes(axes, left, width, step, top, lane)
        left += width


def _merged(boxes: Sequence[Sequence[LayerOp]]) -> list[Sequence[LayerOp]]:
    """All gradients of weights at one place are one box."""
    weights = [step for step in boxes if step[0].of_weight]
    return [step for step in boxes if not step[0].of_weight] + weights[:1]


def _boxes(axes: Axes, left: float, width: float, step: Sequence[LayerOp], top: float, lane: float) -> None:
    """A box for each rank; grey where all ranks make the same, and of one colour where some do."""
    made = [own.fingerprint for own in step]
    for rank, own in enumerate(step):
        face = SAME if is_same(step) else colour_of(made.index(made[rank]), len(step))
        y = top + rank * lane + 0.1 * lane
        look = {"facecolor": face, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
        axes.add_patch(Rectangle((left, y), width, 0.8 * lane, **look))
        if own.doing is Doing.BACKWARD and own.kind is OpKind.PRODUCT:
            words = "dW" if own.of_weight else "dX"
            write(axes, left + width / 2, y + 0.4 * lane, words, SMALL, ink_on(face), zorder=4)


def _border(axes: Axes, x: float, width: float, step: Sequence[LayerOp], top: float, height: float) -> None:
    """A collective across all lanes, with what each rank sends; or nothing."""
    name = collective(step[0])
    if not name:
        axes.plot([x, x], [top, top + height], color=Colour.LINE, linewidth=1, linestyle=(0, (2, 2)), zorder=2)
        write(axes, x, top + height / 2, "nothing", SMALL, Colour.FAINT, rotation=90, bbox=BOX, zorder=4)
        return
    bar = FancyBboxPatch((x - width / 2, top), width, height, boxstyle="round,pad=0,rounding_size=0.04", zorder=3)
    bar.set(facecolor=Colour.COMMUNICATION, edgecolor="none")
    axes.add_patch(bar)
    write(axes, x, top + height / 2, name, SMALL, Colour.INK, rotation=90, zorder=4)
    write(axes, x, top - 0.09, bytes_text(step[0].sent), SMALL, Colour.INK, bbox=BOX, zorder=5)


def _shapes(axes: Axes, x: float, y: float, steps: Sequence[LayerOp]) -> None:
    """What a rank makes here: tokens, then gradients of weights."""
    steps = [step for step in steps if not step.kind.is_collective]
    for words in ([step.made for step in steps if not step.of_weight], [step.made for step in steps if step.of_weight]):
        for shape, count in Counter(words).items():
            many = f"{count} · " if count > 1 else ""
            write(axes, x, y, many + shape_text(shape), SMALL, Colour.FAINT)
            y += LINE


def _legend(axes: Axes, y: float, ranks: int) -> None:
    x = 0.1
    for faces, words in (
        ([SAME], "the same on every rank"),
        ([colour_of(rank, ranks) for rank in range(ranks)], "each rank its own"),
        ([Colour.COMMUNICATION], "collective, bytes sent by a rank"),
    ):
        for face in faces:
            axes.add_patch(Rectangle((x, y - 0.05), 0.12, 0.1, facecolor=face, edgecolor="none"))
            x += 0.12
        write(axes, x + 0.06, y, words, SMALL, Colour.INK, ha="left")
        x += 0.2 + width_of(words, SMALL, "normal")
    write(axes, 0.1, y - 1.3 * LINE, "B×S×D: what one rank makes", SMALL, Colour.FAINT, ha="left")
