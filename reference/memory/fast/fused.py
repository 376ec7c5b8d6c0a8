"""A weight's gradient is multiplied and added up in one product.

Backward of y = x Wᵀ makes dW = dyᵀ x, a matrix as large as the weight. With several micro-batches it is written, read
again, and added to the sum of those before it. A product that adds to a matrix (BLAS: C ← A B + C) reads and writes the
sum, and there is no other matrix.

Megatron-LM calls it gradient accumulation fusion. When a weight's gradient is computed is another matter: see
`reference.pipeline_parallel.split_backward`.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from reference.dtypes import autocasts
from reference.memory.weight_gradients import by_hand, detached
from reference.models.ops import Linear, Ops

LARGE = 1 << 16  # elements of a weight: from here on a product that adds saves more than its call from Python costs


class GradientAccumulator(ABC):
    """A hook of a weight, for `register_post_accumulate_grad_hook`, that adds its gradient up somewhere else."""

    @property
    @abstractmethod
    def accumulates(self) -> bool:
        """Whether it does so still."""

    @abstractmethod
    def __call__(self, weight: nn.Parameter) -> None:
        """Add `weight.grad` to what is there."""

    @abstractmethod
    def add_product(self, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x to what is there, of dy [T, out] and x [T, in]."""


class Fused(Ops):
    """One process, in which the gradients of large weights are added up as they are multiplied."""

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """[B, S, D] -> [B, S, F_i] each."""
        return tuple(self.row_linear(x, layer) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """[B, S, F] -> [B, S, D]."""
        return self._product(x, layer) if self._fuses(x, layer.weight) else layer(x)

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """[B, S, D] -> [B, S, V]."""
        return self._product(x, table) if self._fuses(x, table.weight) else super().logits(x, table)

    def add_weight_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        """As for `Ops`, with one product that adds."""
        add_product(weight, gradient, x)

    def _product(self, x: Tensor, layer: Linear) -> Tensor:
        def bring(x: Tensor, gradients: tuple[Tensor, ...]) -> None:
            self.add_weight_gradient(layer.weight, gradients[0], x)

        return by_hand(x, (detached(layer)(x),), bring)[0]

    def _fuses(self, x: Tensor, weight: Tensor) -> bool:
        return weight.numel() >= LARGE and weight.requires_grad and not autocasts(x)


def add_product(weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
    """Add dyᵀ x, summed over all tokens, to the gradient of a weight [out, in]; its hooks are called.

    Args:
        weight: a leaf of autograd.
        gradient: dy, [..., out].
        x: [..., in].
    """
    gradient, x = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
    on_the_way = list((weight._backward_hooks or {}).values())  # torch has no other way to ask who waits for it
    at_the_end = list((weight._post_accumulate_grad_hooks or {}).values())
    with torch.no_grad():
        match on_the_way + at_the_end:
            case [GradientAccumulator(accumulates=True) as accumulator]:
                accumulator.add_product(gradient, x)
            case [] if weight.grad is not None and weight.grad.dtype == gradient.dtype:
                weight.grad.addmm_(gradient.T, x)
            case _ if on_the_way:
                weight.backward(gradient.T @ x)
            case _:  # where backward ends: quicker than a backward of its own
                get_gradient_edge(weight).node(gradient.T @ x)
