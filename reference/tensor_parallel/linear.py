"""Linear layers of which each rank has a part: split by columns on the way into a region, by rows on the way out.

    Y = X A, Z = Y B        A = [A_1 | A_2]     columns: rank i makes Y_i = X A_i, the i-th part of Y's features
                            B = [B_1]           rows: rank i makes Y_i B_i, and Z is the sum of these
                                [B_2]

One after the other they need one sum, at the end. torch stores the transposed of A and B, so what is called a column
here is a row of `weight` [out, in].

| layer                    | forward                        | backward                                              |
|--------------------------|--------------------------------|-------------------------------------------------------|
| column-parallel          | gather X; Y_i = X A_i          | dX = sum of dY_i A_iᵀ; dA_i = Xᵀ dY_i                 |
| row-parallel             | Z = sum of Y_i B_i             | gather dZ; dY_i = dZ B_iᵀ; dB_i = Y_iᵀ dZ             |

Gather and sum are those of the region. What is gathered in forward is not kept: backward gathers it again, and where
gathering does nothing, that costs nothing. dX needs no dA_i: its sum travels while dA_i is computed. Of what is frozen
no gradient is computed, and what only that would need is neither kept nor sent.

Shoeybi et al. 2019, "Megatron-LM: Training multi-billion parameter language models using model parallelism", sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.differentiable import join, split
from reference.errors import BadInput

if TYPE_CHECKING:
    from .region import Region


class Columns(Function):
    """`apply(region, x, *weights)`: see `Region.columns`. Fused: one gather and one sum for all weights."""

    @staticmethod
    def forward(ctx: Any, region: Region, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.region = region
        ctx.save_for_backward(x if any(ctx.needs_input_grad[2:]) else None, *weights)
        tokens = region.begin_gather(x)()
        return tuple(region.multiply(tokens, weight.T) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, *weights) = ctx.region, ctx.saved_tensors
        _, input_learns, *learn = ctx.needs_input_grad
        gathered = region.begin_gather(x) if any(learn) else _nothing
        of_input = region.begin_sum(product_sum(gradients, weights, region)) if input_learns else _nothing
        tokens = gathered()
        pairs = zip(gradients, learn, strict=True)
        of_weights = [weight_gradient(gradient, tokens, region) if learns else None for gradient, learns in pairs]
        return None, of_input(), *of_weights


class Rows(Function):
    """`apply(region, x, weight)`: see `Region.rows`."""

    @staticmethod
    def forward(ctx: Any, region: Region, x: Tensor, weight: Tensor) -> Tensor:
        ctx.region = region
        ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, weight)
        return region.begin_sum(region.multiply(x, weight.T))()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, weight) = ctx.region, ctx.saved_tensors
        _, input_learns, weight_learns = ctx.needs_input_grad
        gradient = region.begin_gather(gradient.contiguous())()
        of_input = region.multiply(gradient, weight) if input_learns else None
        return None, of_input, weight_gradient(gradient, x, region) if weight_learns else None


def product_sum(gradients: Sequence[Tensor], weights: Sequence[Tensor], region: Region) -> Tensor:
    """What one input gets from all weights that it went through: the sum of dY A over weights, not over ranks.

    Side by side they are one matrix, and the sum is one product.
    """
    if len(weights) == 1:
        return region.multiply(gradients[0], weights[0])
    return region.multiply(torch.cat(gradients, dim=-1), torch.cat(weights))


def weight_gradient(gradient: Tensor, x: Tensor, region: Region) -> Tensor:
    """Of y = x Wᵀ: [..., out] and [..., in] -> [out, in], summed over all tokens."""
    return region.multiply(gradient.flatten(0, -2).T, x.flatten(0, -2))


def require_shares(features: int, kind: str, ranks: int) -> None:
    """See whether features of this kind can be shared out. Raises BadInput that says how many could be."""
    if rest := features % ranks:
        would = [str(count) for count in (features - rest, features - rest + ranks) if count]
        raise BadInput(f"{features} {kind} features do not divide among {ranks} ranks; {' or '.join(would)} would do")


def _part(whole: nn.Parameter, index: int = 0, parts: int = 1, dim: int = 0) -> nn.Parameter:
    """A copy of one of so many equal parts; it learns if the whole does."""
    return nn.Parameter(whole.detach().tensor_split(parts, dim)[index].clone(), whole.requires_grad)


def _nothing() -> None:
    """The end of a collective that nobody began."""


class ColumnParallelLinear(nn.Module):
    """A linear layer into a region: each rank has some of its output features.

    Args:
        whole: the layer, the same on every rank; of its parameters this rank copies its part.
        region: whose t ranks share the layer; its output features divide by t.
        join: put everybody's features together behind it, for work that is the same on every rank.

    Raises:
        BadInput: if the features do not divide.
    """

    def __init__(self, whole: nn.Linear, region: Region, join: bool = False) -> None:
        require_shares(whole.out_features, "output", region.ranks)
        super().__init__()
        self.region, self.join = region, join
        self.weight = _part(whole.weight, region.rank, region.ranks)
        self.bias = None
        if whole.bias is not None:  # each feature has its own: split like the features
            self.bias = _part(whole.bias, region.rank, region.ranks)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] as it lies outside -> [B, S, F / t], or [B, S, F] with `join`."""
        (y,) = self.region.columns(x, self.weight)
        y = y if self.bias is None else y + self.bias
        return join(y, self.region.group, dim=-1) if self.join else y


class RowParallelLinear(nn.Module):
    """A linear layer out of a region: each rank has some of its input features, and all have the sum.

    The bias belongs to the sum: whoever adds it before has added it t times. Every rank keeps all of it.

    Args:
        whole: the layer, the same on every rank; of its weight this rank copies its part.
        region: whose t ranks share the layer; its input features divide by t.
        split: take this rank's features out of an input that is the same on every rank.

    Raises:
        BadInput: if the features do not divide.
    """

    def __init__(self, whole: nn.Linear, region: Region, split: bool = False) -> None:
        require_shares(whole.in_features, "input", region.ranks)
        super().__init__()
        self.region, self.split = region, split
        self.weight = _part(whole.weight, region.rank, region.ranks, dim=1)
        self.bias = None if whole.bias is None else _part(whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, F / t], or [B, S, F] with `split` -> [B, S, D] as it lies outside."""
        y = self.region.rows(split(x, self.region.group, dim=-1) if self.split else x, self.weight)
        return y if self.bias is None else y + self.bias
