"""Backward in two halves: the gradient of the input at once, those of the weights later.

A linear layer y = x Wᵀ has two products in backward. The layer before waits for dx = dy W, and no rank waits for
dW = dyᵀ x. So a layer may put x and dy aside instead of multiplying them: memory is held longer, and the second half
can be done when there is nothing better to do.

Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 1: B and W.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from reference.dtypes import autocasts
from reference.errors import BadInput
from reference.memory.fast.fused import Fused
from reference.memory.weight_gradients import by_hand, detached, product_by_hand
from reference.models.ops import PLAIN, Around, Linear, Ops, adopt, equip


class DeferredWeightGradients:
    """Weight gradients that wait to be computed.

        with deferred.defer(key):
            y.backward(gradient)            inputs get their gradients
        deferred.compute(key)               weights get theirs

    Whose they are: of layers whose ops are `Deferred`, see `split_backward`.

    Attributes:
        splits: whether the backward of what goes forward now may be split. While it is false, layers are as ever.
    """

    def __init__(self) -> None:
        self.splits = True
        self._waiting: dict[Hashable, list[Callable[[], None]]] = {}
        self._key: Hashable | None = None

    @contextmanager
    def defer(self, key: Hashable) -> Iterator[None]:
        """Put aside, under this key, what backward inside needs for weights.

        Raises:
            BadInput: if something waits under it already.
        """
        if key in self._waiting:
            raise BadInput(f"weight gradients of {key} are waiting already: compute({key}) first")
        self._key, self._waiting[key] = key, []
        try:
            yield
        finally:
            self._key = None

    def compute(self, key: Hashable) -> None:
        """Compute what was put aside: gradients add up in the parameters."""
        with torch.no_grad():
            for work in self._waiting.pop(key):
                work()

    def forget(self) -> None:
        """Leave what was put aside undone."""
        self._waiting.clear()

    def defers(self, work: Callable[[], None]) -> bool:
        """Put this aside, if backward is to be split. Else the layer, any layer, does it itself, within backward."""
        if self._key is None:
            return False
        self._waiting[self._key].append(work)
        return True


class Deferred(Around):
    """Ops whose weight gradients wait: those inside make products with weights of which autograd knows nothing.

    In a region of tensor parallelism the messages that inputs need go at once; what is gathered for the weights alone,
    is gathered when they are computed.

    Args:
        inside: that make the products, and say what a weight's gradient needs.
        deferred: where it waits.
    """

    def __init__(self, inside: Ops, deferred: DeferredWeightGradients) -> None:
        super().__init__(inside)
        self.deferred = deferred
        self._on_one_rank = inside.plain_products

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """As those inside. For the weights, the input is gathered later."""
        if not self._splits(layers):
            return self.inside.column_linear(x, *layers)
        if self._are_plain(x, layers):
            return tuple(self._product(x, layer) for layer in layers)
        outputs = self.inside.column_linear(x, *map(detached, layers))
        return by_hand(x, outputs, lambda x, dys: self._later(layers, lambda: (dys, self.inside.gather(x))))

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """As those inside. For the weight, the gradient of the output is gathered later, once more."""
        if not self._splits([layer]):
            return self.inside.row_linear(x, layer)
        if self._are_plain(x, [layer]):
            return self._product(x, layer)
        outputs = (self.inside.row_linear(x, detached(layer)),)
        gather = self.inside.gather
        return by_hand(x, outputs, lambda x, dys: self._later([layer], lambda: ([gather(dys[0].contiguous())], x)))[0]

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """As those inside, and as `column_linear`."""
        if not self._splits([table]):
            return self.inside.logits(x, table)
        if self._are_plain(x, [table]):
            return self._product(x, table)
        outputs = (self.inside.logits(x, detached(table)),)
        return by_hand(x, outputs, lambda x, dys: self._later([table], lambda: (dys, self.inside.gather(x))))[0]

    def _are_plain(self, x: Tensor, layers: Sequence[Linear]) -> bool:
        """Whether products are nothing but products: no rank to gather from, no bias, no cast."""
        return self._on_one_rank and not autocasts(x) and all(getattr(layer, "bias", None) is None for layer in layers)

    def _product(self, x: Tensor, layer: Linear) -> Tensor:
        """Of one layer."""

        def bring(x: Tensor, gradients: tuple[Tensor, ...]) -> None:
            work = partial(self._add_gradient, layer.weight, gradients[0], x)
            if not self.deferred.defers(work):
                work()

        return product_by_hand(x, layer.weight, bring)

    def _add_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        if weight.requires_grad:
            self.inside.add_weight_gradient(weight, gradient, x)

    def _splits(self, layers: Sequence[Linear]) -> bool:
        return self.deferred.splits and any(layer.weight.requires_grad for layer in layers)

    def _later(self, layers: Sequence[Linear], factors: Callable[[], tuple[Sequence[Tensor], Tensor]]) -> None:
        """Bring the weights their gradients, later if that is possible. `factors` makes dy of each, and x of all."""

        def bring() -> None:
            gradients, x = factors()
            for layer, gradient in zip(layers, gradients, strict=True):
                self._add_gradient(layer.weight, gradient, x)

        if not self.deferred.defers(bring):
            bring()


def split_backward(model: nn.Module, deferred: DeferredWeightGradients) -> None:
    """Let the weight gradients of any model wait, in place; those of large weights are added up as `Fused` says.

    Args:
        model: of `reference.models`, or another one, of which plain linear layers are split. All other parameters get
            their gradients at once.
        deferred: where they wait.
    """
    adopt(model)
    equip(model, lambda ops: Deferred(Fused() if ops is PLAIN else ops, deferred))
