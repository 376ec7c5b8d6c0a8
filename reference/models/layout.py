"""How the parameters of a model may be split: a table that stands beside the model, by the ends of their names.

A strategy makes a spec of a row of it (`reference.tensor_parallel.layout`), and everything else follows from that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Counted(StrEnum):
    """What must not be cut through: its count is what ranks share out. By name in a configuration."""

    TOKENS = "vocabulary"
    HEADS = "heads"
    KV_HEADS = "kv_heads"
    FEATURES = "hidden"


@dataclass(frozen=True)
class SplitDim:
    """How a parameter may be split."""

    dim: int
    counted: Counted


@dataclass(frozen=True)
class SplitExperts:
    """How a parameter of several experts is split: dim 0 counts experts, and `dim` features inside each."""

    dim: int


class Kept(StrEnum):
    """How a parameter is kept that every rank has whole, where it matters."""

    ON_SLICES = "on slices"  # each rank of the tensor axes uses it with other tokens, and finds a part of its gradient


Row = SplitDim | SplitExperts | Kept | None
Layout = Mapping[str, Row]
"""By the end of a parameter's name. A bias has no row: it goes with the outputs of its layer's weight."""

WHOLE, ON_SLICES = None, Kept.ON_SLICES
COLUMNS, ROWS = 0, 1  # dims of torch's weights [out, in]: column-parallel layers split what comes out


def split_of(name: str, layout: Layout) -> Row:
    """How the parameter called `name` is split.

    A bias of a column-parallel layer is split as what comes out; that of a row-parallel layer is added to the sum of
    all ranks, once, so each rank has all of it.

    Raises:
        KeyError: if the table does not know it.
    """
    if name.endswith(".bias"):
        of_weight = split_of(f"{name.removesuffix('.bias')}.weight", layout)
        return of_weight if of_weight and of_weight.dim == COLUMNS else WHOLE
    for end, split in layout.items():
        if name == end or name.endswith((f".{end}", f"_{end}")):
            return split
    raise KeyError(f"no row of the layout table says how {name} is split")
