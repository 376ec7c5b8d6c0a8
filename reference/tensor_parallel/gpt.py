"""A GPT, split over the ranks of a tensor axis as the layout table says. Its own code stays as it is.

    tokens      embedding, sum
    each block  norm, gather, attention, sum, +; norm, gather, SwiGLU, sum, +
    the end     norm, gather, head: each rank's logits

In each block two regions begin with column-parallel weights and end with a row-parallel one; the head is a region that
does not end. What lies between the regions (norms, dropout, residual stream) is computed as before.
"""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from reference.models import GPT
from reference.sharding import Placement

from . import vocabulary
from .layout import placement, require_fit
from .region import Region


def placements(model: GPT, rank: int, ranks: int) -> dict[str, Placement]:
    """Of every parameter of a whole model, by name, what one of some tensor-parallel ranks will hold.

    Raises:
        BadInput: if so many ranks cannot share the model.
    """
    require_fit(model.config, ranks)
    named = model.named_parameters()
    return {name: placement(name, parameter.shape, model.config, rank, ranks) for name, parameter in named}


def split_parameters(model: GPT, placed: Mapping[str, Placement]) -> None:
    """Leave each parameter this rank's block, in place. A model on the meta device gets the shapes alone."""
    blocks = {p: nn.Parameter(placed[name].cut(p.detach()), p.requires_grad) for name, p in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, blocks[parameter])


def parallelize_layers(model: GPT, region: Region) -> None:
    """Let a model with split parameters, or a stage of one, compute with them, in place.

    What calls weights is replaced on the instances, and reads them when it is called: whoever puts other parameters in
    their place (FSDP) is understood.
    """
    if model.embedding is not None:
        model.embedding.forward = partial(_embedding, model.embedding, model.config.vocabulary, region)
    for block in model.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        attention.projections = partial(_columns, (attention.query, attention.key, attention.value), region)
        attention.output.forward = partial(_rows, attention.output, region)
        feed_forward.branches = partial(_columns, feed_forward.into, region)
        feed_forward.down.forward = partial(_rows, feed_forward.down, region)
        for dropout in (block.attention_dropout, block.feed_forward_dropout):
            dropout.forward = partial(_dropout, dropout.forward, region)
    if model.head is not None:
        model.head.forward = partial(_head, model.embedding if model.config.tied else model.head, region)


def _embedding(table: nn.Embedding, size: int, region: Region, tokens: Tensor) -> Tensor:
    return vocabulary.embedding(tokens, table.weight, region, size)


def _columns(linears: tuple[nn.Linear, ...], region: Region, x: Tensor) -> tuple[Tensor, ...]:
    made = region.columns(x, *(linear.weight for linear in linears))
    return tuple(_biased(y, linear) for y, linear in zip(made, linears, strict=True))


def _rows(linear: nn.Linear, region: Region, x: Tensor) -> Tensor:
    return _biased(region.rows(x, linear.weight), linear)  # the sum's bias: each rank has all of it


def _biased(y: Tensor, linear: nn.Linear) -> Tensor:
    return y if linear.bias is None else y + linear.bias


def _dropout(drop: Callable[..., Tensor], region: Region, x: Tensor, noise: Tensor | None) -> Tensor:
    return drop(x, None if noise is None else region.own(noise))


def _head(table: nn.Module, region: Region, x: Tensor) -> Tensor:
    (logits,) = region.columns(x, table.weight)
    return logits
