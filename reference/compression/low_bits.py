"""Linear layers of 8-bit numbers under any plan, as ops around those that make the products.

This is `plain_low_bits.linear` with: layers that ranks share, weights whose gradients wait, kernels, and biases.

Over whom is a largest number agreed? Over the ranks that each have a part of what shares a scale, and no others:

| scale of             | shared by        | its parts are on                                           |
|----------------------|------------------|------------------------------------------------------------|
| a token going in     | its features     | ranks of the tensor axes, at the second matrix of a pair   |
| a token's gradient   | its features     | ranks of the tensor axes, at the first matrix of a pair    |
| a weight             | the whole matrix | ranks of the tensor axes; under FSDP see `gathered`        |

Replicas hold equal weights, and find equal scales without a word. Ranks that read other tokens have scales of their
own. So a message is a number for each token, or one for each matrix, and only where tensor parallelism is; what is
learned is what one process learns.

The head, embeddings, routers and experts compute in full.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.communicator import Communicator
from reference.compression.fast.products import has_kernel, product
from reference.compression.plain_low_bits import EightBitNumbers, codes, rounded, scale_of
from reference.models.ops import Around, Linear, Ops, Product

Round = Callable[..., Sequence[Tensor]]
"""From tensors to as many that are rounded."""


class LowBits(Around):
    """Linear layers whose products are of 8-bit numbers.

    Args:
        inside: that make the products.
        numbers: which ones.
        tensor: ranks of the tensor axes, if there are several.
    """

    plain_products = False

    def __init__(self, inside: Ops, numbers: EightBitNumbers, tensor: Communicator | None = None) -> None:
        super().__init__(inside)
        self.numbers, self.tensor = numbers, tensor

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """Into a region: what comes out is split, and so is its gradient."""
        if self._has_kernel(x, layers):
            return tuple(self._by_kernel(x, layer) for layer in layers)
        few = RoundInput.apply(x, self.input_rounding(layers, split=False))
        made = self.inside.column_linear(few, *self._weights(layers))
        return self._learn(x, RoundGradients.apply(self.gradient_rounding(layers, True), *made), layers, split_out=True)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Out of a region: what goes in is split."""
        if self._has_kernel(x, [layer]):
            return self._by_kernel(x, layer)
        few = RoundInput.apply(x, self.input_rounding([layer], split=True))
        made = self.inside.row_linear(few, *self._weights([layer]))
        return self._learn(x, RoundGradients.apply(self.gradient_rounding([layer], False), made), [layer], False)[0]

    def input_rounding(self, layers: Sequence[Linear], split: bool) -> Round:
        """What rounds the tokens that go into layers; `split`: their features are on ranks."""

        def rows(x: Tensor) -> list[Tensor]:
            amax = x.abs().amax(-1, keepdim=True)
            return [rounded(x, self.agreed(amax) if split else amax, self.numbers)]

        return rows

    def gradient_rounding(self, layers: Sequence[Linear], split: bool) -> Round:
        """What rounds the gradients of what comes out of them. One message for all."""

        def rows(*gradients: Tensor) -> list[Tensor]:
            largest = torch.stack([each.abs().amax(-1, keepdim=True) for each in gradients])
            largest = self.agreed(largest) if split else largest
            return [rounded(g, amax, self.numbers) for g, amax in zip(gradients, largest, strict=True)]

        return rows

    def agreed(self, amax: Tensor) -> Tensor:
        """The largest of all parts that ranks of the tensor axes have."""
        if self.tensor is None:
            return amax
        largest = amax.contiguous().clone()
        self.tensor.all_reduce(largest, dist.ReduceOp.MAX)
        return torch.maximum(largest, amax)  # a NaN may get lost on the way, and must not here

    def _weights(self, layers: Sequence[Linear]) -> list[Product]:
        weights = [layer.weight.detach() for layer in layers]
        largest = self.agreed(torch.stack([weight.abs().amax() for weight in weights]))
        return [Product(rounded(w, amax, self.numbers)) for w, amax in zip(weights, largest, strict=True)]

    def _learn(
        self, x: Tensor, made: Sequence[Tensor], layers: Sequence[Linear], split_out: bool
    ) -> tuple[Tensor, ...]:
        """What was made, from which weights learn that autograd was not told of; with their biases."""
        weights = [layer.weight for layer in layers]
        if any(weight.requires_grad for weight in weights):
            made = OfWeights.apply(self.inside, split_out, x, len(layers), *made, *weights)
        return tuple(_biased(y, layer) for y, layer in zip(made, layers, strict=True))

    def _has_kernel(self, x: Tensor, layers: Sequence[Linear]) -> bool:
        return self.inside.plain_products and all(has_kernel(x, each.weight, self.numbers) for each in layers)

    def _by_kernel(self, x: Tensor, layer: Linear) -> Tensor:
        return _biased(ByKernel.apply(x, layer.weight, self.numbers), layer)


class RoundInput(Function):
    """`apply(x, round)`: rounded; backward as if it were not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, round: Round) -> Tensor:
        (few,) = round(x)
        return few

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class RoundGradients(Function):
    """`apply(round, *made)`: as it is; in backward, gradients are rounded."""

    @staticmethod
    def forward(ctx: Any, round: Round, *made: Tensor) -> tuple[Tensor, ...]:
        ctx.round = round
        return tuple(each.view_as(each) for each in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.round(*gradients)


class OfWeights(Function):
    """`apply(inside, split_out, x, n, *made, *weights)`: what was made; in backward, weights get dyᵀ x in full."""

    @staticmethod
    def forward(ctx: Any, inside: Ops, split_out: bool, x: Tensor, n: int, *rest: Tensor) -> tuple[Tensor, ...]:
        ctx.inside, ctx.split_out = inside, split_out
        ctx.save_for_backward(x)
        return tuple(each.view_as(each) for each in rest[:n])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        whole = ctx.inside.gather(x) if ctx.split_out else x
        of_weights = []
        for gradient, learns in zip(gradients, ctx.needs_input_grad[4 + len(gradients) :], strict=True):
            here = gradient if ctx.split_out or not learns else ctx.inside.gather(gradient.contiguous())
            of_weights.append(here.flatten(0, -2).T @ whole.flatten(0, -2) if learns else None)
        return None, None, None, None, *gradients, *of_weights


class ByKernel(Function):
    """`apply(x, weight, numbers)`: the same on one rank, with products of codes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, numbers: EightBitNumbers) -> Tensor:
        scale = scale_of(weight.abs().amax(), numbers)
        few = codes(weight, scale, numbers)
        ctx.save_for_backward(x, few, scale)
        ctx.numbers = numbers
        return _times(x, few, scale, numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, few, scale = ctx.saved_tensors
        of_input = _times(gradient, few.T.contiguous(), scale, ctx.numbers) if ctx.needs_input_grad[0] else None
        learns = ctx.needs_input_grad[1]
        return of_input, gradient.flatten(0, -2).T @ x.flatten(0, -2) if learns else None, None


def _times(x: Tensor, weight: Tensor, weight_scale: Tensor, numbers: EightBitNumbers) -> Tensor:
    """Tokens, each with its scale, by codes of a weight."""
    scale = scale_of(x.abs().amax(-1, keepdim=True), numbers)
    return product(codes(x, scale, numbers), scale, weight, weight_scale, x.dtype)


def _biased(y: Tensor, layer: Linear) -> Tensor:
    bias = getattr(layer, "bias", None)
    return y if bias is None else y + bias
