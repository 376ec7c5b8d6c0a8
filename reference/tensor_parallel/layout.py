"""Which dim of which parameter of a GPT is split over the ranks of the tensor axes: one table for the whole model.

A row of it becomes a spec, and everything else follows from that: see `reference.sharding`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import torch

from reference.errors import BadInput
from reference.mesh import TENSOR, Mesh
from reference.models import GPTConfig
from reference.sharding import Placement, Spec


class Counted(StrEnum):
    """What must not be cut through: its count is what the ranks share out. By name in `GPTConfig`."""

    TOKENS = "vocabulary"
    HEADS = "heads"
    KV_HEADS = "kv_heads"
    FEATURES = "hidden"


@dataclass(frozen=True)
class Split:
    """How a parameter is split."""

    dim: int
    counted: Counted


WHOLE = None
COLUMNS, ROWS = 0, 1  # dims of torch's weights [out, in]: column-parallel layers split what comes out

LAYOUT: Mapping[str, Split | None] = MappingProxyType(
    {
        "embedding.weight": Split(0, Counted.TOKENS),
        "attention.query.weight": Split(COLUMNS, Counted.HEADS),
        "attention.key.weight": Split(COLUMNS, Counted.KV_HEADS),
        "attention.value.weight": Split(COLUMNS, Counted.KV_HEADS),
        "attention.output.weight": Split(ROWS, Counted.HEADS),
        "feed_forward.gate.weight": Split(COLUMNS, Counted.FEATURES),
        "feed_forward.up.weight": Split(COLUMNS, Counted.FEATURES),
        "feed_forward.down.weight": Split(ROWS, Counted.FEATURES),
        "norm.weight": WHOLE,
        "head.weight": Split(COLUMNS, Counted.TOKENS),
    }
)
"""By the end of a parameter's name. A bias has no row: it goes with the outputs of its layer's weight."""


def spec_of(name: str, slices_tokens: bool = False) -> Spec:
    """What the tensor axes do to the parameter called `name`.

    Args:
        name: in the whole model.
        slices_tokens: whether each rank sees other tokens where nothing is split, as with sequence parallelism.

    Raises:
        KeyError: if the table does not know it.
    """
    head, copy = TENSOR
    split = split_of(name)
    if split is WHOLE:
        return Spec(partial=frozenset(TENSOR if slices_tokens else ()))
    if split.counted is Counted.KV_HEADS:  # ranks that share some have other queries
        return Spec({head: split.dim}, partial=frozenset([copy]))
    return Spec({head: split.dim, copy: split.dim}, padded=split.counted is Counted.TOKENS)


def tensor_axes(config: GPTConfig, t: int) -> dict[str, int]:
    """How t tensor-parallel ranks are arranged: along the second axis they have the same key-value heads."""
    copies = max(1, t // config.kv_heads)
    return dict(zip(TENSOR, (t // copies, copies), strict=True))


def placement(name: str, shape: torch.Size, config: GPTConfig, rank: int, ranks: int) -> Placement:
    """What one of some tensor-parallel ranks holds of a parameter.

    Args:
        name, shape: of the whole parameter.
        config: of the model; its sizes divide, see `require_fit`.
        rank, ranks: of the tensor axes together.
    """
    return Placement.of(shape, spec_of(name), Mesh(tensor_axes(config, ranks)), rank)


def split_of(name: str) -> Split | None:
    """How the parameter called `name` is split.

    A bias of a column-parallel layer is split as what comes out; that of a row-parallel layer is added to the sum of
    all ranks, once, so each rank has all of it.

    Raises:
        KeyError: if the table does not know it.
    """
    if name.endswith(".bias"):
        of_weight = split_of(f"{name.removesuffix('.bias')}.weight")
        return of_weight if of_weight and of_weight.dim == COLUMNS else WHOLE
    for end, split in LAYOUT.items():
        if name == end or name.endswith((f".{end}", f"_{end}")):
            return split
    raise KeyError(f"no row of the layout table says how {name} is split")


def require_fit(config: GPTConfig, t: int, ranks: int | None = None, sequence: int | None = None) -> None:
    """See whether a GPT can be split over t ranks.

    Args:
        config: of the model.
        t: ranks of the tensor axis.
        ranks: of all axes together, if they are known.
        sequence: tokens in a window, if they are split, too.

    Raises:
        BadInput: that says what does not divide, and what other t would do.
    """
    if t < 1:
        raise BadInput(f"tensor parallelism takes at least 1 rank, not {t}")
    if misfit := _misfit(config, t, ranks, sequence):
        fitting = [str(other) for other in range(1, config.heads + 1) if not _misfit(config, other, ranks, sequence)]
        would = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if fitting[1:] else fitting[0]
        raise BadInput(f"{misfit}; {would} would do")


def _misfit(config: GPTConfig, t: int, ranks: int | None, sequence: int | None) -> str | None:
    """What does not divide, if anything. A vocabulary always does, since it is padded."""
    if ranks is not None and ranks % t:
        return f"{ranks} ranks do not divide into groups of {t} tensor-parallel ones"
    sizes = {"heads": config.heads, "hidden features": config.hidden, "tokens of a window": sequence or 0}
    if config.kv_heads % t and t % config.kv_heads:
        sizes["key-value heads"] = config.kv_heads
    odd = [f"{size} {name}" for name, size in sizes.items() if size % t]
    return f"{odd[0]} do not divide among {t} tensor-parallel ranks" if odd else None
