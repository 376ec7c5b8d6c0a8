"""Backward in two halves: the gradient of the input at once, those of the weights later.

A linear layer y = x Wᵀ has two products in backward. The layer before waits for dx = dy W, and nobody waits for
dW = dyᵀ x. So a layer that is told to keep things for later puts x and dy aside instead of multiplying them: memory is
held longer, and the second half can be done when there is nothing better to do.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 1: B and W.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.errors import BadInput
from reference.memory.fused import add_product

LARGE = 1 << 16  # elements of a weight: from here on a product that adds saves more than its call from Python costs


class Later:
    """Weight gradients that wait to be computed.

        with later.keeping(key):
            y.backward(gradient)            inputs get their gradients
        later.finish(key)                   weights get theirs

    What goes forward while `splits` is false has a backward that cannot be split: then gradients of large weights are
    added up as `fused` says, and all else is as it is without us.

    Args:
        model: whose linear layers are split, in place: plain ones, without a bias, whose weight is a parameter of their
            own. All other parameters get their gradients at once.
    """

    def __init__(self, model: nn.Module) -> None:
        self.splits = True
        self._kept: dict[Hashable, list[Callable[[], None]]] = {}
        self._key: Hashable | None = None
        for module in model.modules():
            if type(module) is nn.Linear and module.bias is None and isinstance(module.weight, nn.Parameter):
                module.forward = partial(_linear, module, self)

    @contextmanager
    def keeping(self, key: Hashable) -> Iterator[None]:
        """Put aside, under this key, what backward inside needs for weights.

        Raises:
            BadInput: if something is kept under it already.
        """
        if key in self._kept:
            raise BadInput(f"{key} is kept already: finish it first")
        self._key, self._kept[key] = key, []
        try:
            yield
        finally:
            self._key = None

    def finish(self, key: Hashable) -> None:
        """Compute what was put aside: gradients add up in the parameters."""
        for work in self._kept.pop(key):
            work()

    def forget(self) -> None:
        """Leave what was put aside undone."""
        self._kept.clear()

    def keeps(self, work: Callable[[], None]) -> bool:
        """Put this aside, if backward is to be split. Else the layer, any layer, does it itself."""
        if self._key is None:
            return False
        self._kept[self._key].append(work)
        return True


class SplitLinear(Function):
    """`apply(anchor, x, linear, later)`: x Wᵀ, whose weight gradient may have to wait.

    Autograd is not told of the weight: it would call the weight's hooks whether backward brings a gradient or not. So
    the gradient is brought by hand, and the `anchor` is an input that needs a gradient even where x needs none.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, linear: nn.Linear, later: Later) -> Tensor:
        ctx.linear, ctx.later = linear, later
        ctx.save_for_backward(x)
        return F.linear(x, linear.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.linear.weight
        work = partial(add_product, weight, gradient, x)
        if weight.requires_grad and not ctx.later.keeps(work):
            work()
        return None, gradient @ weight if ctx.needs_input_grad[1] else None, None, None


def _linear(linear: nn.Linear, later: Later, x: Tensor) -> Tensor:
    weight = linear.weight
    fuses = weight.numel() >= LARGE and weight.requires_grad and not torch.is_autocast_enabled(x.device.type)
    if not (later.splits or fuses):
        return F.linear(x, weight)
    return SplitLinear.apply(torch.empty(0, requires_grad=True), x, linear, later)
