"""The ops of a model whose matrices are split over the ranks of the tensor axes. The model's own code stays as it is.

    tokens      embedding, sum
    each block  norm, gather, attention, sum, +; norm, gather, SwiGLU, sum, +
    the end     norm, gather, head: each rank's logits

In each block two regions begin with column-parallel weights and end with a row-parallel one; the head is a region that
does not end. What lies between the regions (norms, dropout, residual stream) is computed as before.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from reference.errors import BadInput
from reference.models.ops import PLAIN, Linear, Ops, equip
from reference.models.stack import Stack
from reference.sharding import Placement

from . import vocabulary
from .layout import placement, require_fit
from .region import Region, weight_gradient


class TensorParallel(Ops):
    """Layers have blocks of their weights, and compute in a region.

    Weights are read when they are needed: other parameters in their place (FSDP) are understood.
    """

    plain_products = False

    def __init__(self, region: Region) -> None:
        self.region = region

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """[B, S] of integers -> [B, S, D] outside of the region."""
        return vocabulary.embedding(tokens, table.weight, self.region, table.num_embeddings)

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """Into the region: [B, S, D] outside -> [B, S, F_i / t] each."""
        made = self.region.column_linear(x, *(layer.weight for layer in layers))
        return tuple(_biased(y, layer) for y, layer in zip(made, layers, strict=True))

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Out of the region: [B, S, F / t] -> [B, S, D] outside."""
        return _biased(self.region.row_linear(x, layer.weight), layer)  # the sum's bias: each rank has all of it

    def dropout(self, drop: Callable[..., Tensor], x: Tensor, seeds: Tensor | None) -> Tensor:
        """By the seeds of those tokens that this rank has outside."""
        return drop(x, None if seeds is None else self.local_tokens(seeds))

    def local_tokens(self, x: Tensor) -> Tensor:
        """What this rank has outside: [B, S, ...] -> [B, S, ...], or a slice of the tokens."""
        return self.region.local_tokens(x)

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """[B, S, D] outside -> [B, S, V' / t]: this rank's part of the vocabulary."""
        (logits,) = self.region.column_linear(x, table.weight)
        return logits

    def gather(self, x: Tensor) -> Tensor:
        """All tokens of what lies outside."""
        return self.region.start_gather(x)()

    def add_weight_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        """As for `Ops`, of this rank's block."""
        weight.backward(weight_gradient(gradient, x, self.region))


def placements(model: Stack, rank: int, ranks: int) -> dict[str, Placement]:
    """Of every parameter of a whole model, by name, what one of some tensor-parallel ranks will hold.

    Raises:
        BadInput: if so many ranks cannot share the model.
    """
    require_fit(model.config, ranks)
    named = model.named_parameters()
    return {name: placement(name, parameter.shape, model.config, rank, ranks) for name, parameter in named}


def split_parameters(model: Stack, placed: Mapping[str, Placement]) -> None:
    """Leave each parameter this rank's block, in place. A model on the meta device gets the shapes alone."""
    blocks = {p: nn.Parameter(placed[name].cut(p.detach()), p.requires_grad) for name, p in model.named_parameters()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, blocks[parameter])


def parallelize_layers(model: nn.Module, region: Region) -> None:
    """Let a model with split parameters compute with them, in place.

    Raises:
        BadInput: if the model has other ops already: those stand around these.
    """

    def innermost(ops: Ops) -> Ops:
        if ops is not PLAIN:
            raise BadInput(f"{type(ops).__name__} stands around tensor parallelism: give a model that afterwards")
        return TensorParallel(region)

    equip(model, innermost)


def _biased(y: Tensor, layer: Linear) -> Tensor:
    return y if layer.bias is None else y + layer.bias
