"""Matrices as ranks have them, and what becomes of them in a product. `visualizations.splits` draws them.

Where a weight is cut is read from the layout table. How its products come out follows from the rule of matrix products
and is not written down anywhere: cut B by columns, and A B is cut by columns; cut A by columns and B by rows, what is
multiplied and added in A B, and each rank has a summand.

torch stores weights transposed, [out, in]; here they are as in Y = X W, [in, out].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from reference.errors import BadInput
from reference.models import GPT, GPTConfig
from reference.models.layout import Counted, split_of
from reference.sharding import Placement
from reference.tensor_parallel.layout import placement, require_fit

TABLE = "embedding.weight"  # the one weight that is not transposed: a row for each token


class Cut(StrEnum):
    """What each rank has of a matrix."""

    NOWHERE = "all of it"
    ROWS = "some of its rows"
    COLUMNS = "some of its columns"
    SUM = "a summand of it"


_TURNED = {Cut.ROWS: Cut.COLUMNS, Cut.COLUMNS: Cut.ROWS}


@dataclass(frozen=True)
class Stripe:
    """Rows, or columns, from `begin` to `end`, and the ranks that have them."""

    ranks: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Matrix:
    """A matrix, and how the ranks have it."""

    name: str
    rows: int
    columns: int
    cut: Cut
    stripes: tuple[Stripe, ...]  # of what is cut; of a sum, the ranks alone count
    units: int = 0  # heads, that no cut goes through

    @property
    def turned(self) -> "Matrix":
        """Its transposed."""
        name = self.name.removesuffix("ᵀ") if self.name.endswith("ᵀ") else self.name + "ᵀ"
        return replace(self, name=name, rows=self.columns, columns=self.rows, cut=_TURNED.get(self.cut, self.cut))

    def times(self, other: "Matrix", name: str) -> "Matrix":
        """Their product, as each rank makes it of what it has.

        Raises:
            BadInput: if some rank lacks what it needs, or no rank could multiply them.
        """
        if self.columns != other.rows:
            raise BadInput(f"{self.name} has {self.columns} columns, {other.name} has {other.rows} rows")
        shape = {"name": name, "rows": self.rows, "columns": other.columns}
        match self.cut, other.cut:
            case Cut.NOWHERE, Cut.NOWHERE | Cut.COLUMNS:
                return replace(other, **shape)
            case Cut.ROWS, Cut.NOWHERE:
                return replace(self, **shape)
            case Cut.COLUMNS, Cut.ROWS:
                return replace(other, **shape, cut=Cut.SUM, units=0)
        raise BadInput(f"ranks with {self.cut} of {self.name} and {other.cut} of {other.name} cannot multiply them")

    @property
    def whole(self) -> "Matrix":
        """The same when every rank has all of it: of a sum, after an all-reduce."""
        return replace(self, cut=Cut.NOWHERE, units=0)


@dataclass(frozen=True)
class Product:
    """left · right = made."""

    left: Matrix
    right: Matrix
    made: Matrix

    @classmethod
    def of(cls, left: Matrix, right: Matrix, name: str) -> "Product":
        """Of two matrices, as each rank makes it."""
        return cls(left, right, left.times(right, name))


def weight(name: str, config: GPTConfig, t: int, letter: str = "") -> Matrix:
    """A weight as the layout table splits it, [in, out].

    Args:
        name: of a parameter, or the end of it.
        config: of the model.
        t: ranks.
        letter: what to call it; its name by default.

    Raises:
        BadInput: if the model does not fit so many ranks, or has no such parameter.
    """
    require_fit(config, t)
    shapes = parameters(config)
    if name not in shapes:
        raise BadInput(f"the model has no parameter {name}: there are {', '.join(shapes)}")
    shape = shapes[name]
    matrix = of_placements([placement(name, shape, config, rank, t) for rank in range(t)], letter or name)
    split = split_of(name, config.layout)
    units = getattr(config, split.counted) if split and split.counted in (Counted.HEADS, Counted.KV_HEADS) else 0
    matrix = replace(matrix, units=units)
    return replace(matrix.turned, name=matrix.name) if name == TABLE else matrix


def parameters(config: GPTConfig) -> Mapping[str, torch.Size]:
    """Shapes of a block's parameters, of the two tables and of the last norm, by the ends of their names."""
    with torch.device("meta"):
        model = GPT(replace(config, layers=1))
    return {name.removeprefix("blocks.0."): parameter.shape for name, parameter in model.named_parameters()}


def of_placements(placed: Sequence[Placement], name: str) -> Matrix:
    """What ranks hold of one parameter, as one matrix [in, out]."""
    rows, columns = placed[0].shape if len(placed[0].shape) > 1 else (placed[0].shape[0], 1)
    dim = 0 if placed[0].block.sizes[0] < rows or len(placed[0].shape) == 1 else 1
    by_rows = dim == 0
    cuts: dict[tuple[int, int], list[int]] = {}
    for rank, own in enumerate(placed):
        begin, size = own.block.begins[dim], own.block.sizes[dim]
        cuts.setdefault((begin, min(begin + size, rows if by_rows else columns)), []).append(rank)
    stripes = tuple(Stripe(tuple(ranks), begin, max(begin, end)) for (begin, end), ranks in cuts.items())
    if len(stripes) == 1:
        return Matrix(name, columns, rows, Cut.NOWHERE, stripes)
    return Matrix(name, columns, rows, Cut.COLUMNS if by_rows else Cut.ROWS, stripes)


def linear(x: Matrix, w: Matrix, out: str) -> tuple[Product, Product, Product]:
    """Y = X W, and of a dY that is like Y, summed: dX = dY Wᵀ and dW = Xᵀ dY."""
    forward = Product.of(x, w, out)
    upstream = forward.made.whole if forward.made.cut is Cut.SUM else forward.made
    upstream = replace(upstream, name="d" + out)
    return (
        forward,
        Product.of(upstream, w.turned, "d" + x.name),
        Product.of(x.turned, upstream, "d" + w.name),
    )


def numbers_on(matrix: Matrix, rank: int) -> int:
    """How many numbers of a matrix a rank holds."""
    across = {Cut.ROWS: matrix.columns, Cut.COLUMNS: matrix.rows}.get(matrix.cut)
    if across is None:
        return matrix.rows * matrix.columns
    return sum((stripe.end - stripe.begin) * across for stripe in matrix.stripes if rank in stripe.ranks)


def input_of(w: Matrix, tokens: int, name: str) -> Matrix:
    """The X of X W: cut by columns if the rows of W are."""
    if w.cut is Cut.ROWS:
        return Matrix(name, tokens, w.rows, Cut.COLUMNS, w.stripes, w.units)
    ranks = tuple(sorted(rank for stripe in w.stripes for rank in stripe.ranks))
    return Matrix(name, tokens, w.rows, Cut.NOWHERE, (Stripe(ranks, 0, tokens),))


def shape_text(matrix: Matrix) -> str:
    """4096×14336"""
    return f"{matrix.rows}×{matrix.columns}"
