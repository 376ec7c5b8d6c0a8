"""A region of a model in which ranks share the work on every token.

This is `plain.enter` and `plain.leave` with: sums that travel while a product is computed, inputs that are gathered
again instead of kept, and the place where sequence parallelism puts its own messages.

Each rank has some columns of one matrix and some rows of the next, so between the two it has some of the features. At
the borders of a region two things happen, and each is the backward of the other:

    gather      what lies outside becomes what every rank needs inside: all tokens, with all features
    sum         what the ranks made inside, each from its own weights, is added up

    forward      outside --gather--> columns, rows --sum--> outside
    backward     outside <---sum---- columns, rows <--gather-- outside

How much that costs depends on what lies outside. In tensor parallelism each rank has all tokens there (Shoeybi et al.
2019, "Megatron-LM", sec. 3): gather does nothing, and sum is an all-reduce. Megatron's f is such a gather, and its g
such a sum. In sequence parallelism each rank has some of the tokens (`reference.sequence_parallel`).

X and Z lie outside; rank i has A_i, columns of the first matrix, and B_i, rows of the second:

| product  | forward               | backward                                  |
|----------|-----------------------|-------------------------------------------|
| columns  | gather X; Y_i = X A_i | dX = sum of dY_i A_iᵀ; dA_i = Xᵀ dY_i     |
| rows     | Z = sum of Y_i B_i    | gather dZ; dY_i = dZ B_iᵀ; dB_i = Y_iᵀ dZ |

What is gathered in forward is not kept: backward gathers it again, and where gathering does nothing, that costs
nothing. dX needs no dA_i: its sum travels while dA_i is computed. Of what is frozen no gradient is computed, and what
only that would need is neither kept nor sent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.default import over
from reference.collectives.differentiable import Conjugate
from reference.memory.recompute import Autocast


class Region:
    """A region with all tokens on every rank at its borders.

    Args:
        group: the t ranks that share the work; all see the same tokens.
        overlap: let gradients of inputs travel while those of weights are computed. That is NCCL's way; between
            processes that share a processor there is nothing to hide behind, and the faster collectives win.
        multiply: two matrices. To measure overlap, let it sleep.
    """

    slices_tokens = False  # whether each rank has other tokens outside

    def __init__(
        self,
        group: ProcessGroup | Communicator,
        overlap: bool = False,
        multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    ) -> None:
        self.communicator, self.overlap, self.multiply = over(group), overlap, multiply
        self.group, self.rank, self.ranks = self.communicator.group, group.rank(), group.size()

    def start_gather(self, x: Tensor) -> Finish:
        """Begin to make all tokens of what lies outside: [B, S, D] -> the same."""
        return lambda: x

    def start_sum(self, x: Tensor) -> Finish:
        """Begin to add up what each rank made of all tokens, in place: [B, S, D] -> [B, S, D]."""
        if self.overlap:
            return self.communicator.start_all_reduce(x)
        self.communicator.all_reduce(x)
        return lambda: x

    def local_tokens(self, x: Tensor) -> Tensor:
        """What this rank has outside, of something that is known of all tokens: [B, S, ...] -> [B, S, ...]."""
        return x

    def all_features(self, x: Tensor) -> Tensor:
        """The features of all ranks side by side: [..., F / t] -> [..., F]."""
        features = x.movedim(-1, 0).contiguous()
        out = features.new_empty(self.ranks * len(features), *features.shape[1:])
        self.communicator.all_gather(features, out)
        return out.movedim(0, -1)

    def own_features(self, x: Tensor) -> Tensor:
        """This rank's features, which t divides: [..., F] -> [..., F / t]."""
        return x.chunk(self.ranks, dim=-1)[self.rank].clone()

    def column_linear(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """Into the region: the product of all tokens with each of these column-parallel weights.

        Args:
            x: [B, S, D], as it lies outside.
            weights: [F_i / t, D] each: this rank's rows. A weight is stored transposed, so rows are columns of x Wᵀ.

        Returns:
            [B, S, F_i / t] each.
        """
        return Columns.apply(self, x, *weights)

    def row_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Out of the region: the product with a row-parallel weight, added up over the ranks.

        Args:
            x: [B, S, F / t]: this rank's features.
            weight: [D, F / t]: this rank's columns.

        Returns:
            [B, S, D], as it lies outside.
        """
        return Rows.apply(self, x, weight)

    def reduce_output(self, x: Tensor) -> Tensor:
        """Out of the region with what each rank made: [B, S, D], summed, as it lies outside."""

        def total(x: Tensor) -> Tensor:
            return self.start_sum(x.clone(memory_format=torch.contiguous_format))()

        return Conjugate.apply(x, total, lambda gradient: self.start_gather(gradient)())


class Columns(Function):
    """`apply(region, x, *weights)`: see `Region.column_linear`. Fused: one gather and one sum for all weights."""

    @staticmethod
    def forward(ctx: Any, region: Region, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.region, ctx.autocast = region, Autocast([x])
        ctx.save_for_backward(x if any(ctx.needs_input_grad[2:]) else None, *weights)
        tokens = region.start_gather(x)()
        return tuple(region.multiply(tokens, weight.T) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, *weights) = ctx.region, ctx.saved_tensors
        _, input_learns, *learn = ctx.needs_input_grad
        with ctx.autocast.restored():
            gathered = region.start_gather(x) if any(learn) else _nothing
            of_input = region.start_sum(product_sum(gradients, weights, region)) if input_learns else _nothing
            tokens = gathered()
            pairs = zip(gradients, learn, strict=True)
            of_weights = [weight_gradient(gradient, tokens, region) if learns else None for gradient, learns in pairs]
            return None, of_input(), *of_weights


class Rows(Function):
    """`apply(region, x, weight)`: see `Region.row_linear`."""

    @staticmethod
    def forward(ctx: Any, region: Region, x: Tensor, weight: Tensor) -> Tensor:
        ctx.region, ctx.autocast = region, Autocast([x])
        ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, weight)
        return region.start_sum(region.multiply(x, weight.T))()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, weight) = ctx.region, ctx.saved_tensors
        _, input_learns, weight_learns = ctx.needs_input_grad
        with ctx.autocast.restored():
            gradient = region.start_gather(gradient.contiguous())()
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


def _nothing() -> None:
    """No-op finish, where no collective was started."""
