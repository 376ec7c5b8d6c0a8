"""Weight gradients by hand: autograd computes the gradients of inputs, and of weights it knows nothing.

A linear layer y = x Wᵀ has two products in backward: dx = dy W, for which the layer before waits, and dW = dyᵀ x, for
which no rank waits. A strategy that chooses when the second is computed, or where it goes, computes it by hand:
the product is made with a `detached` weight, and `by_hand` says what is to be done when dy is known.

Autograd would call the weight's hooks whether backward brings a gradient or not. So it is not told of the weight.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.models.ops import Linear, Product

Bring = Callable[[Tensor, tuple[Tensor, ...]], None]
"""Given x, and the gradients of what was made of it."""


def detached(layer: Linear) -> Product:
    """A linear layer of whose weight autograd knows nothing; its bias learns as ever."""
    return Product(layer.weight.detach(), getattr(layer, "bias", None), getattr(layer, "of", layer))


def by_hand(x: Tensor, outputs: tuple[Tensor, ...], bring: Bring) -> tuple[Tensor, ...]:
    """The outputs as they are; in backward, `bring` is given `x` and their gradients."""
    anchor = torch.empty(0, requires_grad=True)  # x, and so the outputs, may need no gradient themselves
    return GivenByHand.apply(anchor, bring, x, *outputs)


class GivenByHand(Function):
    """`apply(anchor, bring, x, *outputs)`: see `by_hand`. x is saved as autograd would save it, hooks included."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, bring: Bring, x: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.bring = bring
        ctx.save_for_backward(x)
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        ctx.bring(x, gradients)
        return None, None, None, *gradients


def product_by_hand(x: Tensor, weight: Tensor, bring: Bring) -> Tensor:
    """x Wᵀ, whose weight's gradient is brought by hand: as `by_hand` around the product, in one function.

    With narrow layers, whose products take no longer than their calls, two functions would cost a fifth of a step.

    Args:
        x: [..., in].
        weight: [out, in].
        bring: called in backward with x and (dy,).
    """
    anchor = torch.empty(0, requires_grad=True)
    return ProductByHand.apply(anchor, x, weight.detach(), bring)


class ProductByHand(Function):
    """`apply(anchor, x, weight, bring)`: see `product_by_hand`."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bring: Bring) -> Tensor:
        ctx.bring = bring
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.bring(x, (gradient,))
        return None, gradient @ weight if ctx.needs_input_grad[1] else None, None, None
