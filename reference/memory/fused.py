"""A weight's gradient is multiplied and added up in one product.

Backward of y = x Wᵀ makes dW = dyᵀ x, a matrix as large as the weight. With several micro-batches it is written, read
again, and added to the sum of those before it. A product that adds to a matrix (BLAS: C ← A B + C) reads and writes the
sum, and there is no other matrix.

Megatron-LM calls it gradient accumulation fusion.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge


class Keeper(ABC):
    """A hook of a weight, for `register_post_accumulate_grad_hook`, that keeps its gradient somewhere else."""

    @property
    @abstractmethod
    def keeps(self) -> bool:
        """Whether it does so still."""

    @abstractmethod
    def __call__(self, weight: nn.Parameter) -> None:
        """Add `weight.grad` to what is kept."""

    @abstractmethod
    def add_product(self, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x to what is kept, of dy [T, out] and x [T, in]."""


def add_product(weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
    """Add dyᵀ x, summed over all tokens, to the gradient of a weight [out, in]; its hooks hear of it.

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
            case [Keeper(keeps=True) as keeper]:
                keeper.add_product(gradient, x)
            case [] if weight.grad is not None and weight.grad.dtype == gradient.dtype:
                weight.grad.addmm_(gradient.T, x)
            case _ if on_the_way:
                weight.backward(gradient.T @ x)
            case _:  # where backward ends: quicker than a backward of its own
                get_gradient_edge(weight).node(gradient.T @ x)
