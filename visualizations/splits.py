"""Matrices as they are split: which part of which matrix is on which rank, forward and backward.

A matrix is a rectangle in proportion, and each rank has a colour and a number. A matrix that every rank has whole is
grey. A stack of sheets is a sum that is not added up yet: each rank has a summand, as large as the whole. Thin lines
are the borders of heads.

Everything follows from the layout table and the rule of matrix products (`visualizations.matrices`).
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from reference.models import GPTConfig

from .matrices import TABLE, Cut, Matrix, Product, Stripe, input_of, linear, numbers_on, parameters, shape_text, weight
from .rank_colours import SAME, colour_of
from .style import SMALL, TEXT, WIDTH, Colour, Picture, canvas, fits, ink_on, width_of, write

SHEETS, LOWER = 0.18, 0.14  # inches from the first sheet of a sum to the last, to the right and down


def draw_product(name: str, config: GPTConfig, t: int, tokens: int, *, title: str = "") -> Picture:
    """One linear layer: its product, and the two products of its backward.

    Args:
        name: of a weight in the layout table: "feed_forward.up.weight" is cut by columns, "feed_forward.down.weight" by
            rows, "head.weight" by tokens of the vocabulary.
        config: of the model.
        t: ranks.
        tokens: rows of X.
        title: the finding; by default where a sum is needed.
    """
    w = weight(name, config, t, "W")
    forward, of_x, of_w = linear(input_of(w, tokens, "one-hot X" if name == TABLE else "X"), w, "Y")
    rows = [[forward], [of_x, of_w]]
    if name == TABLE:  # X has a 1 where the token is, and no gradient
        rows = [[forward, of_w]]
    made = [product for row in rows for product in row]
    words = title or f"{name.removesuffix('.weight')}, cut by {_cut_words(w)}: {_sums(made)}"
    return _draw(rows, t, words)


def draw_pair(first: str, second: str, config: GPTConfig, t: int, tokens: int, *, title: str = "") -> Picture:
    """Two linear layers after each other: Y = X A, Z = Y B, and backward. What lies between them is left out.

    Args:
        first, second: weights in the layout table: "feed_forward.up.weight" and "feed_forward.down.weight", or
            "attention.query.weight" and "attention.output.weight".
        config, t, tokens, title: as for `draw_product`.

    Raises:
        BadInput: if the second does not take what the first makes.
    """
    a, b = weight(first, config, t, "A"), weight(second, config, t, "B")
    x = input_of(a, tokens, "X")
    into, of_x, of_a = linear(x, a, "Y")
    out, of_y, of_b = linear(into.made, b, "Z")
    names = " and ".join(name.split(".")[-2] for name in (first, second))
    words = title or f"{names}, one after the other: {_sums([into, out, of_y, of_x])}"
    return _draw([[into, out], [of_y, of_x], [of_b, of_a]], t, words)


def draw_layer(config: GPTConfig, t: int, *, title: str = "") -> Picture:
    """Every parameter of a block as the layout table splits it, in proportion.

    Args:
        config: of the model.
        t: ranks.
        title: the finding; by default how many numbers a rank holds.
    """
    names = [name for name in parameters(config) if name.startswith(HALVES)]
    matrices = [weight(name, config, t, name.split(".")[-2].split("_")[-1]) for name in names]
    rows = [[m for m, name in zip(matrices, names, strict=True) if name.startswith(half)] for half in HALVES]
    scale = min(_scale(rows, 0.55), 2.0 / max(m.rows for m in matrices))
    heights = [max(_size(m, scale)[1] for m in row) + 0.92 for row in rows]
    picture, axes = canvas(sum(heights) + 0.3, title or layer_finding(matrices, t))
    top = 0.0
    for row, height, words in zip(rows, heights, HALVES, strict=True):
        write(axes, 0.1, top + 0.12, words.replace("_", "-"), TEXT, Colour.INK, ha="left", weight="bold")
        x = 0.12
        for matrix in row:
            width, _ = _size(matrix, scale)
            width = max(width, *(width_of(words, SMALL, "normal") for words in (shape_text(matrix), _share(matrix))))
            _matrix(axes, matrix, x + width / 2, top + 0.46, scale, t)
            _, below = _size(matrix, scale)
            write(axes, x + width / 2, top + 0.73 + below, _share(matrix), SMALL, Colour.FAINT)
            x += width + 0.2
        top += height
    _legend(axes, sum(heights) + 0.1, t, sums=False)
    return picture


HALVES = ("attention", "feed_forward")


def _share(matrix: Matrix) -> str:
    """The shape of what one rank holds."""
    size = matrix.stripes[0].end - matrix.stripes[0].begin
    match matrix.cut:
        case Cut.ROWS:
            return f"{size}×{matrix.columns} each"
        case Cut.COLUMNS:
            return f"{matrix.rows}×{size} each"
    return "all of it each"


def layer_finding(matrices: Sequence[Matrix], t: int) -> str:
    """The default title of a block: what a rank holds of it."""
    whole = sum(matrix.rows * matrix.columns for matrix in matrices)
    own = sum(numbers_on(matrix, 0) for matrix in matrices)
    alike = [matrix for matrix in matrices if matrix.cut is Cut.NOWHERE]
    everywhere = sum(matrix.rows * matrix.columns for matrix in alike)
    return (
        f"Each of {t} ranks holds {_count(own)} of a block's {_count(whole)} numbers; {everywhere:,} are on all of them"
    )


def _count(numbers: int) -> str:
    return f"{numbers / 1e6:.3g} million" if numbers >= 1_000_000 else f"{numbers:,}"


def _cut_words(w: Matrix) -> str:
    return {Cut.ROWS: "rows", Cut.COLUMNS: "columns"}.get(w.cut, "nothing")


def _sums(products: Sequence[Product]) -> str:
    names = [product.made.name for product in products if product.made.cut is Cut.SUM]
    made = [product.made.name for product in products]
    which = " and ".join(names) if names else "nothing"
    return f"of {', '.join(made[:-1])} and {made[-1]}, only {which} must be summed over the ranks"


def _scale(rows: Sequence[Sequence[Matrix]], gap: float) -> float:
    """Inches for an element, such that the widest row of matrices fits."""
    return min((WIDTH - 0.3 - gap * len(row)) / sum(matrix.columns for matrix in row) for row in rows)


def _size(matrix: Matrix, scale: float) -> tuple[float, float]:
    """Width and height in inches; what would be thinner than a line that can be seen is a little thicker."""
    return max(matrix.columns * scale, 0.05), max(matrix.rows * scale, 0.05)


def _draw(rows: Sequence[Sequence[Product]], t: int, title: str) -> Picture:
    """Rows of products, on one scale."""
    parts = [[_parts(product) for product in products] for products in rows]
    if max(_narrowest(one) for row in parts for one in row) > WIDTH / max(map(len, rows)) - 0.2:
        return _draw([[product] for products in rows for product in products], t, title)
    most = max(map(len, rows))
    scale = min(_fitting(one, WIDTH / most - 0.3) for row in parts for one in row)
    heights = [max(_high(matrix, scale) for one in row for matrix, _ in one) + 0.78 for row in parts]
    picture, axes = canvas(sum(heights) + 0.2, title)
    top = 0.0
    for products, row, height in zip(rows, parts, heights, strict=True):
        for place, (product, one) in enumerate(zip(products, row, strict=True)):
            left = 0.1 + place * (WIDTH - 0.1) / most
            _heading(axes, left, top + 0.1, product)
            _product(axes, one, left + 0.05, top + 0.44, height - 0.78, scale, t)
        top += height
    sums = any(product.made.cut is Cut.SUM for products in rows for product in products)
    _legend(axes, sum(heights) + 0.04, t, sums)
    return picture


def _high(matrix: Matrix, scale: float) -> float:
    """Inches around the middle that a matrix needs, with the sheets of a sum."""
    return _size(matrix, scale)[1] + (2 * LOWER if matrix.cut is Cut.SUM else 0)


def _narrowest(parts: Sequence[tuple[Matrix, str]]) -> float:
    """Inches that the shapes below the matrices of a product need."""
    wide = sum(width_of(shape_text(matrix), SMALL, "normal") + GAP for matrix, _ in parts)
    return wide + SHEETS * sum(matrix.cut is Cut.SUM for matrix, _ in parts)


def _fitting(parts: Sequence[tuple[Matrix, str]], room: float) -> float:
    """Inches for an element, such that a product has room, and is not too high."""
    wide = (room - GAP * len(parts) - SHEETS) / sum(matrix.columns for matrix, _ in parts)
    return min(wide, HIGHEST / max(matrix.rows for matrix, _ in parts))


def _heading(axes: Axes, x: float, y: float, product: Product) -> None:
    """What a product is for, in the colour of that, and its formula."""
    made = product.made.name
    words, colour = "forward", Colour.FORWARD
    if made.startswith("d"):
        of_weight = product.left.name.endswith("ᵀ")
        words, colour = (
            ("weight gradient", Colour.WEIGHT_GRADIENT) if of_weight else ("input gradient", Colour.BACKWARD)
        )
    formula = f"{made} = {product.left.name} {product.right.name}"
    write(axes, x, y, f"{words}:  {formula}", TEXT, colour, ha="left", weight="bold")


GAP = 0.36  # inches between matrices
ARROW = "→"
HIGHEST = 1.05  # inches of a matrix


def _parts(product: Product) -> list[tuple[Matrix, str]]:
    """The matrices of a product from left to right, each with the sign after it; and what becomes of a sum."""
    parts = [(product.left, "×"), (product.right, "=")]
    if product.made.cut is not Cut.SUM:
        return [*parts, (product.made, "")]
    return [*parts, (product.made, ARROW), (product.made.whole, "")]


def _product(
    axes: Axes, parts: Sequence[tuple[Matrix, str]], x: float, y: float, height: float, scale: float, t: int
) -> None:
    for matrix, sign in parts:
        width, own = _size(matrix, scale)
        width = max(width, width_of(shape_text(matrix), SMALL, "normal"))
        _matrix(axes, matrix, x + width / 2, y + (height - own) / 2, scale, t)
        x += width + GAP + (SHEETS if matrix.cut is Cut.SUM else 0)
        if sign == ARROW:
            _all_reduce(axes, x - GAP + 0.03, x - 0.04, y + height / 2)
        else:
            write(axes, x - GAP / 2, y + height / 2, sign, TEXT + 2, Colour.INK)


def _all_reduce(axes: Axes, begin: float, end: float, y: float) -> None:
    style = {"arrowstyle": "-|>,head_width=0.25,head_length=0.4", "color": Colour.COMMUNICATION, "linewidth": 2}
    axes.annotate("", (end, y), (begin, y), arrowprops={**style, "shrinkA": 0, "shrinkB": 0}, zorder=4)
    write(axes, (begin + end) / 2, y - 0.12, "sum", SMALL, Colour.INK)


def _matrix(axes: Axes, matrix: Matrix, x: float, y: float, scale: float, t: int) -> None:
    """A matrix with its name above and its shape below; x is its middle, y its top."""
    width, height = _size(matrix, scale)
    left = x - width / 2
    write(axes, x, y - 0.11, matrix.name, SMALL, Colour.INK, weight="bold")
    look = {"edgecolor": "white", "linewidth": 0.6}
    if matrix.cut is Cut.NOWHERE:
        axes.add_patch(Rectangle((left, y), width, height, facecolor=SAME, **look))
    elif matrix.cut is Cut.SUM:
        for rank in reversed(range(t)):
            place = (left + rank * SHEETS / t, y + rank * LOWER / t)
            axes.add_patch(Rectangle(place, width, height, facecolor=colour_of(rank, t), **look))
    else:
        for stripe in matrix.stripes:
            _stripe(axes, matrix, stripe, (left, y, width, height), t)
    below = y + height + (LOWER if matrix.cut is Cut.SUM else 0) + 0.12
    write(axes, x, below, shape_text(matrix), SMALL, Colour.FAINT)


def _stripe(axes: Axes, matrix: Matrix, stripe: Stripe, box: tuple[float, float, float, float], t: int) -> None:
    """The part of some ranks, in the colour of the first of them, with their numbers where there is room."""
    left, top, width, height = box
    by_rows = matrix.cut is Cut.ROWS
    unit = (height if by_rows else width) / (matrix.rows if by_rows else matrix.columns)
    begin, thick = stripe.begin * unit, (stripe.end - stripe.begin) * unit
    x, y, wide, tall = (left, top + begin, width, thick) if by_rows else (left + begin, top, thick, height)
    face = colour_of(stripe.ranks[0], t)
    line = 0.6 if thick > 0.05 else 0.2
    axes.add_patch(Rectangle((x, y), wide, tall, facecolor=face, edgecolor="white", linewidth=line))
    inside = matrix.units * (stripe.end - stripe.begin) // (matrix.rows if by_rows else matrix.columns)
    for unit in range(1, inside if thick > 0.03 * inside else 0):
        at = unit * thick / inside
        line = ([x, x + wide], [y + at] * 2) if by_rows else ([x + at] * 2, [y, y + tall])
        axes.plot(*line, color="white", linewidth=0.5, alpha=0.6)
    words = str(stripe.ranks[0]) if len(stripe.ranks) == 1 else f"{stripe.ranks[0]}–{stripe.ranks[-1]}"
    room = tall if by_rows else wide
    longest = max(words, str(t - 1), key=len)  # all of them, or none
    if fits(longest, *((wide, room) if by_rows else (room, tall))):
        write(axes, x + wide / 2, y + tall / 2, words, SMALL, ink_on(face))


def _legend(axes: Axes, y: float, t: int, sums: bool = True) -> None:
    x = 0.1
    faces = [colour_of(rank, min(t, 8)) for rank in range(min(t, 8))]
    for marks, words in (([SAME], "the same on every rank"), (faces, f"ranks 0 to {t - 1}, each with its part")):
        for face in marks:
            axes.add_patch(Rectangle((x, y - 0.05), 0.12, 0.1, facecolor=face, edgecolor="none"))
            x += 0.12
        write(axes, x + 0.06, y, words, SMALL, Colour.INK, ha="left")
        x += 0.26 + width_of(words, SMALL, "normal")
    if not sums:
        return
    for rank in reversed(range(3)):
        place = (x + rank * 0.045, y - 0.07 + rank * 0.036)
        axes.add_patch(Rectangle(place, 0.16, 0.1, facecolor=colour_of(rank, 3), edgecolor="white", linewidth=0.6))
    write(axes, x + 0.34, y, "each with a summand of the whole", SMALL, Colour.INK, ha="left")
