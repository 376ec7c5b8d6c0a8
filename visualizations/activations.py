"""What a layer keeps for backward, term by term: which terms tensor parallelism divides, and which it leaves whole.

Drawn from the table of `reference.memory.korthikanti` (Korthikanti et al. 2022). Blue lies inside attention and MLP: by
heads or by columns, tensor parallelism divides it. Of that, what grows with pairs of tokens is light: selective
recomputation makes it again. Pink lies between, and is whole on every rank until sequence parallelism divides it by
tokens. Bars are the formula, dots are measured.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from reference.memory.korthikanti import TERMS, LayerShape, LayerSplit, Term

from .style import SMALL, TEXT, WIDTH, Colour, Picture, amount_axis, bytes_text, canvas, figure, plain, width_of, write


class Variant(StrEnum):
    """How a layer is split, and what is made again."""

    TENSOR = "tensor parallel"
    SEQUENCE = "tensor and sequence parallel"
    SELECTIVE = "the same, pairs made again"


Case = tuple[Variant, int]
"""A variant, and number of ranks t."""

FORMULAS: Mapping[Variant, Callable[[LayerShape], Fraction]] = {
    Variant.TENSOR: LayerShape.tensor,
    Variant.SEQUENCE: LayerShape.tensor_sequence,
    Variant.SELECTIVE: LayerShape.tensor_sequence_selective,
}


class Place(StrEnum):
    """Where a term lies, in the order in which terms are stacked."""

    BETWEEN = "between attention and MLP"
    INSIDE = "inside attention and MLP"
    PAIRS = "pairs of tokens, in attention"


FACES = {Place.BETWEEN: "#E7B6D2", Place.INSIDE: Colour.FORWARD, Place.PAIRS: "#A9D6F0"}


def place_of(term: Term) -> Place:
    """Where a term lies."""
    if term.split is LayerSplit.SEQUENCE_PARALLEL:
        return Place.BETWEEN
    return Place.PAIRS if term.per_pair else Place.INSIDE


def bytes_of(term: Term, layer: LayerShape, variant: Variant) -> Fraction:
    """What a rank keeps of a term."""
    if variant is Variant.SELECTIVE and term.per_pair:
        return Fraction()
    tokens, pairs = layer.sequence * layer.batch * layer.width, layer.heads * layer.sequence**2 * layer.batch
    whole = variant is Variant.TENSOR and term.split is LayerSplit.SEQUENCE_PARALLEL
    return Fraction(term.per_token * tokens + term.per_pair * pairs, 1 if whole else layer.tensor_parallel)


def draw(
    layer: LayerShape,
    ranks: Sequence[int] = (1, 2, 4, 8),
    *,
    measured: Mapping[Case, float] | None = None,
    title: str = "",
) -> Picture:
    """Bytes of a layer on each rank, over t, in each variant: stacked by term.

    Args:
        layer: sequence, batch, width and heads; its own t does not count.
        ranks: t of each bar; 1 is the whole layer.
        measured: bytes that were found, of any of the cases.
        title: the finding; by default what stays on every rank at the largest t.
    """
    picture = figure(3.5, title or finding(layer, max(ranks)))
    panels = picture.subplots(1, len(Variant), sharey=True)
    highest = float(layer.everything())
    for axes, variant in zip(panels, Variant, strict=True):
        plain(axes).grid(False, axis="x")
        axes.set(ylim=(0, 1.1 * highest), xlim=(-0.6, len(ranks) - 0.4))
        for place, t in enumerate(ranks):
            _bar(axes, place, on(layer, t), variant, (measured or {}).get((variant, t)))
        axes.set_xticks(range(len(ranks)), [str(t) for t in ranks])
        axes.set_title(variant, fontsize=TEXT, color=Colour.INK, fontweight="bold", loc="left")
        axes.set_xlabel("t, ranks that share the layer", fontsize=SMALL, color=Colour.INK)
        axes.tick_params(axis="x", length=0)
    amount_axis(panels[0], "activations of a layer, on a rank", bytes_text)
    marks = [Patch(facecolor=FACES[place], label=place) for place in reversed(Place)]
    place = {"loc": "upper right", "frameon": False, "borderaxespad": 0, "alignment": "left"}
    note = "bars: formula, dots: measured" if measured else None
    panels[-1].legend(handles=marks, fontsize=SMALL, title=note, title_fontsize=SMALL, **place)
    return picture


def finding(layer: LayerShape, t: int) -> str:
    """The default title."""
    layer = on(layer, t)
    tensor, both, selective = (float(FORMULAS[variant](layer)) for variant in Variant)
    between = float(sum(bytes_of(term, layer, Variant.TENSOR) for term in TERMS if place_of(term) is Place.BETWEEN))
    return (
        f"On {t} ranks {bytes_text(between)} of a layer stay whole until sequence parallelism divides them: "
        f"{bytes_text(tensor)} become {bytes_text(both)}, and {bytes_text(selective)} without pairs of tokens"
    )


def on(layer: LayerShape, t: int) -> LayerShape:
    """The same layer among t ranks."""
    return LayerShape(layer.sequence, layer.batch, layer.width, layer.heads, t)


def stacked(variant: Variant) -> list[Term]:
    """The terms of a variant from the bottom of a bar to its top."""
    order = list(Place)
    kept = (term for term in TERMS if not (variant is Variant.SELECTIVE and term.per_pair))
    return sorted(kept, key=lambda term: order.index(place_of(term)))


def _bar(axes: Axes, place: int, layer: LayerShape, variant: Variant, measured: float | None) -> None:
    bottom = Fraction()
    for term in stacked(variant):
        size = bytes_of(term, layer, variant)
        line = 0.5 if float(size) > 0.01 * axes.get_ylim()[1] else 0
        look = {"facecolor": FACES[place_of(term)], "edgecolor": "white", "linewidth": line, "zorder": 2}
        axes.add_patch(Rectangle((place - 0.4, float(bottom)), 0.8, float(size), **look))
        bottom += size
    words = {"ha": "center", "fontsize": SMALL, "textcoords": "offset points", "zorder": 5}
    top = max(float(bottom), measured or 0)
    axes.annotate(bytes_text(float(bottom)), (place, top), (0, 5 if measured else 3), **words)
    if measured is not None:
        look = {"marker": "o", "markersize": 4.5, "color": Colour.INK, "markeredgecolor": "white", "zorder": 4}
        axes.plot(place, measured, linestyle="none", **look)


ROW, HEAD, NUMBER = 0.2, 0.62, 0.75  # inches: of a term, above the terms, for its bytes
LEGEND = {
    Place.BETWEEN: "between: whole, until tokens are divided",
    Place.INSIDE: "inside: divided by t",
    Place.PAIRS: "pairs of tokens: divided by t, or made again",
}


def draw_terms(layer: LayerShape, *, title: str = "") -> Picture:
    """Each term with what a rank keeps of it, side by side: on one rank, tensor parallel, and with sequences, too.

    Args:
        layer: among its t ranks.
        title: the finding; by default how many of the bytes tensor parallelism leaves whole.
    """
    picture, axes = canvas(HEAD + (len(TERMS) + 2.6) * ROW, title or terms_finding(layer.tensor_parallel))
    alone = on(layer, 1)
    columns = {
        "on one rank": (alone, Variant.TENSOR),
        **{variant: (layer, variant) for variant in (Variant.TENSOR, Variant.SEQUENCE)},
    }
    names = max(width_of(term.tensor, SMALL, "normal") for term in TERMS) + 0.2
    width = (WIDTH - names) / len(columns)
    inch = (width - NUMBER) / float(max(bytes_of(term, alone, Variant.TENSOR) for term in TERMS))
    for row, term in enumerate(TERMS):
        write(axes, names - 0.1, HEAD + (row + 0.5) * ROW, term.tensor, SMALL, Colour.INK, ha="right")
    for index, (words, (one, variant)) in enumerate(columns.items()):
        _terms(axes, names + index * width, words, one, variant, inch)
    x, y = 0.1, HEAD + (len(TERMS) + 0.8) * ROW
    for place in Place:
        axes.add_patch(Rectangle((x, y - 0.05), 0.16, 0.1, facecolor=FACES[place], edgecolor="none"))
        write(axes, x + 0.22, y, LEGEND[place], SMALL, Colour.INK, ha="left")
        x += 0.42 + width_of(LEGEND[place], SMALL, "normal")
        if place is Place.INSIDE:
            x, y = 0.1, y + ROW
    return picture


def terms_finding(t: int) -> str:
    """The default title of the terms."""
    between, inside = (
        sum(term.per_token for term in TERMS if place_of(term) is place) for place in (Place.BETWEEN, Place.INSIDE)
    )
    return (
        f"Of {between + inside} bytes for each number of a token, tensor parallelism divides {inside} among {t} ranks; "
        f"{between} are left for sequence parallelism"
    )


def _terms(axes: Axes, left: float, words: str, layer: LayerShape, variant: Variant, inch: float) -> None:
    """A column of bars, and their sum above it; `inch` of a bar is a byte."""
    head = words.replace(" and ", "\nand ")
    write(axes, left, HEAD - 0.24, head, SMALL, Colour.INK, weight="bold", ha="left", va="bottom")
    write(axes, left, HEAD - 0.14, bytes_text(float(FORMULAS[variant](layer))), SMALL, Colour.FAINT, ha="left")
    for row, term in enumerate(TERMS):
        size, y = float(bytes_of(term, layer, variant)), HEAD + row * ROW
        face = {"facecolor": FACES[place_of(term)], "edgecolor": "none"}
        axes.add_patch(Rectangle((left, y + 0.03), size * inch, ROW - 0.06, **face))
        write(axes, left + size * inch + 0.04, y + ROW / 2, bytes_text(size), SMALL, Colour.INK, ha="left")
