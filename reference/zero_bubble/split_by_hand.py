"""A linear layer whose backward is done in two halves, written out for one layer.

    y = x Wᵀ        I: dx = dy W, at once, because the layer before waits for it
                    W: dW = dyᵀ x, when there is nothing better to do

Between I and W the layer keeps x and dy. For any model, and with hooks on parameters that must not be called too early,
see `reference.pipeline_parallel.split_backward`.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 1.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def split_linear(x: Tensor, weight: Tensor, later: Callable[[Callable[[], None]], None]) -> Tensor:
    """x weightᵀ, whose backward computes the gradient of x and puts that of the weight off.

    Args:
        x: [T, D].
        weight: [F, D], a leaf.
        later: is called by backward, with a function of no arguments that adds the weight's gradient to `weight.grad`.

    Returns:
        [T, F].
    """
    return SplitLinear.apply(x, weight, later)


class SplitLinear(Function):
    """`apply(x, weight, later)`: see `split_linear`. Autograd gets no gradient of the weight from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, later: Callable[[Callable[[], None]], None]) -> Tensor:
        ctx.weight, ctx.later = weight, later
        ctx.save_for_backward(x)
        return x @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (x,), weight = ctx.saved_tensors, ctx.weight

        def finish() -> None:
            with torch.no_grad():  # else weight.grad remembers what it was made of, and that stays
                of_weight = gradient.T @ x
                weight.grad = of_weight if weight.grad is None else weight.grad + of_weight

        ctx.later(finish)
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None
