"""A region of a model in which ranks share the work on every token.

Each rank has some columns of one matrix and some rows of the next, so between the two it has some of the features. At
the borders of a region two things happen, and each is the backward of the other:

    gather      what lies outside becomes what every rank needs inside: all tokens, with all features
    sum         what the ranks made inside, each from its own weights, is added up

    forward      outside --gather--> columns, rows --sum--> outside
    backward     outside <---sum---- columns, rows <--gather-- outside

How much that costs depends on what lies outside. In tensor parallelism each rank has all tokens there (Shoeybi et al.
2019, "Megatron-LM", sec. 3): gather does nothing, and sum is an all-reduce. Megatron's f is such a gather, and its g
such a sum. In sequence parallelism each rank has some of the tokens (`reference.sequence_parallel`).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives import begin, fastest
from reference.collectives.begin import Finish
from reference.collectives.differentiable import Conjugate

from .linear import Columns, Rows


class Region:
    """A region with all tokens on every rank at its borders.

    Args:
        group: the t ranks that share the work; all see the same tokens.
        overlap: let gradients of inputs travel while those of weights are computed. That is NCCL's way; between
            processes that share a processor there is nothing to hide behind, and the faster collectives win.
        multiply: two matrices. Who measures overlap lets it sleep.
    """

    slices_tokens = False  # whether each rank has other tokens outside

    def __init__(
        self, group: ProcessGroup, overlap: bool = False, multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    ) -> None:
        self.group, self.overlap, self.multiply = group, overlap, multiply
        self.rank, self.ranks = group.rank(), group.size()

    def begin_gather(self, x: Tensor) -> Finish:
        """Begin to make all tokens of what lies outside: [B, S, D] -> the same."""
        return lambda: x

    def begin_sum(self, x: Tensor) -> Finish:
        """Begin to add up what each rank made of all tokens, in place: [B, S, D] -> [B, S, D]."""
        if self.overlap:
            return begin.all_reduce(x, self.group)
        fastest.all_reduce(x, self.group)
        return lambda: x

    def own(self, x: Tensor) -> Tensor:
        """What this rank has outside, of something that is known of all tokens: [B, S, ...] -> [B, S, ...]."""
        return x

    def columns(self, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """Into the region: the product of all tokens with each of these column-parallel weights.

        Args:
            x: [B, S, D], as it lies outside.
            weights: [F_i / t, D] each: this rank's rows. A weight is stored transposed, so rows are columns of x Wᵀ.

        Returns:
            [B, S, F_i / t] each.
        """
        return Columns.apply(self, x, *weights)

    def rows(self, x: Tensor, weight: Tensor) -> Tensor:
        """Out of the region: the product with a row-parallel weight, added up over the ranks.

        Args:
            x: [B, S, F / t]: this rank's features.
            weight: [D, F / t]: this rank's columns.

        Returns:
            [B, S, D], as it lies outside.
        """
        return Rows.apply(self, x, weight)

    def leave(self, x: Tensor) -> Tensor:
        """Out of the region with what each rank made: [B, S, D], summed, as it lies outside."""

        def total(x: Tensor) -> Tensor:
            return self.begin_sum(x.clone(memory_format=torch.contiguous_format))()

        return Conjugate.apply(x, total, lambda gradient: self.begin_gather(gradient)())
