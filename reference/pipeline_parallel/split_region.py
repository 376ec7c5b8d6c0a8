"""Split backward in a tensor-parallel region: gradients of inputs, and the messages they need, now; of weights, later.

The region computes with weights of which autograd knows nothing, so its backward makes the gradient of the input alone.
Behind it a function that changes nothing sees the gradient of the output, and puts aside what weights need.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.tensor_parallel.region import Region, weight_gradient

from .split_backward import Later


class SplitRegion:
    """A region whose weight gradients may have to wait. All else is as in the region itself.

    Args:
        region: of tensor or sequence parallelism.
        later: who keeps what has to wait.
    """

    def __init__(self, region: Region, later: Later) -> None:
        self._region, self._later = region, later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._region, name)

    def columns(self, x: Tensor, *weights: nn.Parameter) -> tuple[Tensor, ...]:
        """As for `Region`. For the weights, the input is gathered later."""
        if not self._later.splits:
            return self._region.columns(x, *weights)
        begin_gather, given = self._region.begin_gather, x.detach()
        outputs = self._region.columns(x, *(weight.detach() for weight in weights))
        return self._seen(outputs, weights, lambda gradients: (gradients, begin_gather(given)()))

    def rows(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        """As for `Region`. For the weight, the gradient of the output is gathered later, once more."""
        if not self._later.splits:
            return self._region.rows(x, weight)
        begin_gather, given = self._region.begin_gather, x.detach()
        outputs = (self._region.rows(x, weight.detach()),)
        seen = self._seen(outputs, (weight,), lambda gradients: ([begin_gather(gradients[0].contiguous())()], given))
        return seen[0]

    def _seen(
        self,
        outputs: Sequence[Tensor],
        weights: Sequence[nn.Parameter],
        factors: Callable[[Sequence[Tensor]], tuple[Sequence[Tensor], Tensor]],
    ) -> tuple[Tensor, ...]:
        """The outputs, whose gradients will be seen. `factors` makes of these what each weight and all weights need."""

        def bring(gradients: Sequence[Tensor]) -> None:
            of_outputs, x = factors(gradients)
            for weight, gradient in zip(weights, of_outputs, strict=True):
                if weight.requires_grad:
                    weight.backward(weight_gradient(gradient, x, self._region))

        def see(*gradients: Tensor) -> None:
            if not self._later.keeps(lambda: bring(gradients)):
                bring(gradients)

        if not any(weight.requires_grad for weight in weights):
            return tuple(outputs)
        anchor = torch.empty(0, requires_grad=True)  # outputs may need no gradient themselves
        return Seen.apply(anchor, see, *outputs)


class Seen(Function):
    """`apply(anchor, see, *x)`: x as it is. In backward, `see` is told its gradients."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, see: Callable[..., None], *x: Tensor) -> tuple[Tensor, ...]:
        ctx.see = see
        return tuple(each.view_as(each) for each in x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.see(*gradients)
        return None, None, *gradients
