"""Asynchronous tensor parallelism: slices travel around a ring while those that are here are multiplied.

This is `region.SequenceRegion` with: no wait for the slices of other ranks. What it computes is the same.

A sequence-parallel region gathers all tokens and then multiplies, or multiplies and then adds up: the network waits for
the processor, and the processor for the network. But a product of all tokens is t products of slices of them, and each
can be made when its slice is there:

    all-gather, matmul        multiply the slice one holds, while it travels on to the right and the next one comes
    matmul, reduce-scatter    multiply the slice whose sum is in flight to here, add, and send it on to the right

    rank 1 of 4     all-gather, matmul                            matmul, reduce-scatter
    computing       |  x_1 W |  x_0 W |  x_3 W |  x_2 W |         |  x_0 W |  x_3 W |  x_2 W |  x_1 W |
    sending         |   x_1  |   x_0  |   x_3  |                           | sum_0  | sum_3  | sum_2  |

Each is the other's backward. If a slice takes P seconds to multiply and M to travel, either takes P + (t-1) max(P, M)
instead of tP + (t-1) M: nothing is waited for if P >= M, and else one product has nothing to hide behind. The bytes are
those of a ring all-gather or reduce-scatter. What it costs: smaller products, which a GPU may do less well, and sums
of gradients and outputs that are rounded t times.

Wang et al. 2023, "Overlap communication with dependent computation via decomposition in large deep learning models";
in PyTorch, async tensor parallelism (Liang et al. 2024, "TorchTitan").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.memory.recompute import Autocast
from reference.sequence_parallel.region import SequenceRegion, cut
from reference.tensor_parallel.region import product_sum, weight_gradient

Multiply = Callable[[Tensor, Tensor], Tensor]


class RingRegion(SequenceRegion):
    """A sequence-parallel region whose products hide its messages, in forward and backward. Arguments as for `Region`.

    What enters or leaves without a product (an embedding, `reduce_output`) goes as in `SequenceRegion`.
    """

    def column_linear(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """As for `Region`: [B, S / t, D] and [F_i / t, D] each -> [B, S, F_i / t] each."""
        return RingColumns.apply(self, x, *weights)

    def row_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """As for `Region`: [B, S, F / t] and [D, F / t] -> [B, S / t, D]."""
        return RingRows.apply(self, x, weight)


def all_gather_matmul(
    x: Tensor, weights: Sequence[Tensor], group: ProcessGroup | Communicator, multiply: Multiply = torch.matmul
) -> tuple[Tensor, ...]:
    """The products of every rank's tokens with each of these weights.

    Args:
        x: [B, S / t, D]: this rank's slice of the sequence.
        weights: [F_i, D] each.
        group: the t ranks.
        multiply: two matrices.

    Returns:
        [B, S, F_i] each.
    """
    *batch, tokens, _ = x.shape
    products = tuple(x.new_empty(*batch, group.size(), tokens, len(weight)) for weight in weights)
    for owner, part in passing(x, group):
        for product, weight in zip(products, weights, strict=True):
            product[..., owner, :, :] = multiply(part, weight.T)
    return tuple(product.flatten(-3, -2) for product in products)


def matmul_reduce_scatter(
    x: Tensor, weight: Tensor, group: ProcessGroup | Communicator, multiply: Multiply = torch.matmul
) -> Tensor:
    """This rank's slice of the sum over ranks of x Wᵀ.

    Args:
        x: [B, S, F]: all tokens; of features those that this rank has.
        weight: [D, F].
        group: the t ranks.
        multiply: two matrices.

    Returns:
        [B, S / t, D].

    Raises:
        BadInput: if S does not divide by t.
    """
    parts = cut(x, group.size())
    return sum_around_ring(lambda owner: multiply(parts[..., owner, :, :], weight.T), group)


def passing(x: Tensor, group: ProcessGroup | Communicator) -> Iterator[tuple[int, Tensor]]:
    """Every rank's `x`, this rank's own first, then what comes from the left. Yields whose it is, and it.

    Each travels on to the right, and the next one comes, while the caller works with it. When the caller asks for the
    next one, it must be done with this one.
    """
    communicator, rank, n = over(group), group.rank(), group.size()
    here = x.contiguous()
    buffers = [torch.empty_like(here) for _ in range(min(n - 1, 2))]  # one is sent, the other filled
    for step in range(n - 1):
        coming = buffers[step % 2]
        finish = communicator.start_exchange(here, (rank + 1) % n, coming, (rank - 1) % n)
        yield (rank - step) % n, here
        here = finish()
    yield (rank + 1) % n, here


def sum_around_ring(part: Callable[[int], Tensor], group: ProcessGroup | Communicator) -> Tensor:
    """The sum over ranks of what each makes for this one: `part(rank)` of them all.

    Args:
        part: makes this rank's part for the rank that it is told, contiguous and not used elsewhere. It is called while
            the sum of what the others made for that rank is coming from the left.
        group: the ranks.
    """
    communicator, rank, n = over(group), group.rank(), group.size()
    total = part((rank - 1) % n)
    coming = torch.empty_like(total)
    for step in range(1, n):
        finish = communicator.start_exchange(total, (rank + 1) % n, coming, (rank - 1) % n)
        mine = part((rank - 1 - step) % n)
        total = mine.add_(finish())
    return total


class RingColumns(Function):
    """`apply(region, x, *weights)`: see `RingRegion.column_linear`."""

    @staticmethod
    def forward(ctx: Any, region: RingRegion, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.region, ctx.autocast = region, Autocast([x])
        ctx.save_for_backward(x if any(ctx.needs_input_grad[2:]) else None, *weights)
        return all_gather_matmul(x, weights, region.communicator, region.multiply)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, *weights) = ctx.region, ctx.saved_tensors
        _, input_learns, *learn = ctx.needs_input_grad
        parts = [cut(gradient, region.ranks) for gradient in gradients]

        def of_slice(owner: int) -> Tensor:
            return product_sum([part[..., owner, :, :] for part in parts], weights, region)

        with ctx.autocast.restored():
            of_input = sum_around_ring(of_slice, region.communicator) if input_learns else None
            of_weights = [
                torch.zeros_like(weight) if learns else None for weight, learns in zip(weights, learn, strict=True)
            ]
            for owner, tokens in passing(x, region.communicator) if any(learn) else ():
                for total, part in zip(of_weights, parts, strict=True):
                    if total is not None:
                        total += weight_gradient(part[..., owner, :, :], tokens, region)
        return None, of_input, *of_weights


class RingRows(Function):
    """`apply(region, x, weight)`: see `RingRegion.row_linear`. In backward one round serves both products."""

    @staticmethod
    def forward(ctx: Any, region: RingRegion, x: Tensor, weight: Tensor) -> Tensor:
        ctx.region, ctx.shape, ctx.autocast = region, x.shape, Autocast([x])
        ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, weight)
        return matmul_reduce_scatter(x, weight, region.communicator, region.multiply)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        region, (x, weight) = ctx.region, ctx.saved_tensors
        _, input_learns, weight_learns = ctx.needs_input_grad
        of_input = gradient.new_empty(ctx.shape) if input_learns else None
        of_weight = torch.zeros_like(weight) if weight_learns else None
        with ctx.autocast.restored():
            for owner, of_tokens in passing(gradient, region.communicator):
                if input_learns:
                    cut(of_input, region.ranks)[..., owner, :, :] = region.multiply(of_tokens, weight)
                if weight_learns:
                    of_weight += weight_gradient(of_tokens, cut(x, region.ranks)[..., owner, :, :], region)
        return None, of_input, of_weight
