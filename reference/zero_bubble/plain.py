"""Zero bubble in one layer and one rank: a backward in two halves, and an order that puts the second one off.

    y = x Wᵀ        I: dx = dy W, at once, because the layer before waits for it
                    W: dW = dyᵀ x, when there is nothing better to do

Between I and W the layer keeps x and dy. For any model, and with hooks on parameters that must not be called too early,
see `reference.pipeline_parallel.split_backward`.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 1 and 2.1. `orders.zb_h1` is the same order as a table.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.pipeline_parallel.schedule import Action, Kind


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


def zb_h1_order(rank: int, p: int, m: int) -> list[Action]:
    """1F1B in which rank r is r micro-batches behind with W: as many as its memory, 1F1B's on rank 0, allows.

    Args:
        rank: of p; it has stage number `rank`.
        p: ranks.
        m: micro-batches.
    """
    warm_up = min(p - 1 - rank, m)
    order = [Action(Kind.FORWARD, rank, k) for k in range(warm_up)]
    for k in range(m):
        if warm_up + k < m:
            order.append(Action(Kind.FORWARD, rank, warm_up + k))
        order.append(Action(Kind.INPUT, rank, k))
        if k >= rank:
            order.append(Action(Kind.WEIGHT, rank, k - rank))
    return order + [Action(Kind.WEIGHT, rank, k) for k in range(max(m - rank, 0), m)]
