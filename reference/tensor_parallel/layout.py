"""What the tensor axes do to each parameter of a model: its table says how it may be split, and a row becomes a spec.

Everything else follows from that: see `reference.sharding`.
"""

import torch

from reference.errors import BadInput
from reference.mesh import TENSOR, Mesh
from reference.models.layout import ON_SLICES, WHOLE, Counted, Layout, SplitExperts, split_of
from reference.models.stack import ModelConfig
from reference.sharding import Placement, Spec


def spec_of(name: str, layout: Layout, slices_tokens: bool = False) -> Spec:
    """What the tensor axes do to the parameter called `name`.

    Args:
        name: in the whole model.
        layout: of the model.
        slices_tokens: whether each rank sees other tokens where nothing is split, as with sequence parallelism.

    Raises:
        KeyError: if the table does not know it.
    """
    head, copy = TENSOR
    split = split_of(name, layout)
    if isinstance(split, SplitExperts):
        return Spec({"ep": 0, "etp": split.dim})
    if split is ON_SLICES:
        return Spec(partial=frozenset(TENSOR))
    if split is WHOLE:
        return Spec(partial=frozenset(TENSOR if slices_tokens else ()))
    if split.counted is Counted.KV_HEADS:  # ranks that share some have other queries
        return Spec({head: split.dim}, partial=frozenset([copy]))
    return Spec({head: split.dim, copy: split.dim}, padded=split.counted is Counted.TOKENS)


def tensor_axes(config: ModelConfig, t: int) -> dict[str, int]:
    """How t tensor-parallel ranks are arranged: along the second axis they have the same key-value heads."""
    copies = max(1, t // config.kv_heads)
    return dict(zip(TENSOR, (t // copies, copies), strict=True))


def placement(name: str, shape: torch.Size, config: ModelConfig, rank: int, ranks: int) -> Placement:
    """What one of some tensor-parallel ranks holds of a parameter.

    Args:
        name, shape: of the whole parameter.
        config: of the model; its sizes divide, see `require_fit`.
        rank, ranks: of the tensor axes together.
    """
    return Placement.of(shape, spec_of(name, config.layout), Mesh(tensor_axes(config, ranks)), rank)


def require_fit(config: ModelConfig, t: int, ranks: int | None = None, sequence: int | None = None) -> None:
    """See whether a model can be split over t ranks.

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


def _misfit(config: ModelConfig, t: int, ranks: int | None, sequence: int | None) -> str | None:
    """What does not divide, if anything. A vocabulary always does, since it is padded."""
    if ranks is not None and ranks % t:
        return f"{ranks} ranks do not divide into groups of {t} tensor-parallel ones"
    sizes = {"heads": config.heads, "hidden features": config.hidden, "tokens of a window": sequence or 0}
    if config.kv_heads % t and t % config.kv_heads:
        sizes["key-value heads"] = config.kv_heads
    odd = [f"{size} {name}" for name, size in sizes.items() if size % t]
    return f"{odd[0]} do not divide among {t} tensor-parallel ranks" if odd else None
