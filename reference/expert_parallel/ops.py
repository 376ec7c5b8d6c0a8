"""The ops of a model whose experts are shared out: the one place in which ranks with different tokens meet in forward.

Where ranks share matrices and each has all tokens, each of them routes some: a token must come to its experts once. So
what surrounds the experts, from the router on, sees slices of windows there, as it does with sequence parallelism.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.communicator import Communicator
from reference.models.by_expert import Compute
from reference.models.ops import Around, Made, Ops

from .dispatch import Dispatch
from .two_level import TwoLevelDispatch


@dataclass(frozen=True)
class TokenRanks:
    """Which ranks have which tokens.

    Attributes:
        tensor: ranks that share matrices.
        windows: ranks that have tokens of the same windows, in this order: those of one slice of the context, which
            share matrices, one after another.
        batch: all ranks that have other tokens of a micro-batch.
        slices_tokens: whether ranks that share matrices have slices of the tokens anyway.
    """

    tensor: Communicator
    windows: Communicator
    batch: Communicator
    slices_tokens: bool


class ExpertParallel(Around):
    """Experts over ranks.

    Args:
        inside: ops of the model.
        dispatch: how tokens come to experts; None where each rank has all of them.
        ranks: that have tokens, see `TokenRanks`.
    """

    def __init__(self, inside: Ops, dispatch: Dispatch | TwoLevelDispatch | None, ranks: TokenRanks) -> None:
        super().__init__(inside)
        self.dispatch, self.ranks = dispatch, ranks

    def start_routed(self, function: Callable[..., Made], x: Tensor, positions: Tensor) -> Made:
        """With the tokens that no other rank routes."""
        tensor = self.ranks.tensor
        if self.ranks.slices_tokens:
            return function(x, self.inside.local_tokens(positions[None])[0])
        if tensor.size() == 1:
            return function(x, positions)
        finish = function(CutTokens.apply(x, tensor), positions.tensor_split(tensor.size())[tensor.rank()])
        return lambda: JoinTokens.apply(finish(), tensor, x.shape[1])

    def start_experts(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Made:
        """On the ranks that have them."""
        if self.dispatch is None:
            return self.inside.start_experts(compute, x, chosen, weights, experts)
        return self.dispatch.start(compute, x, chosen, weights)

    def sum_over_windows(self, counts: Tensor) -> Tensor:
        """Over the ranks that have tokens of the same windows."""
        return summed(counts, self.ranks.windows)

    def sum_over_batch(self, counts: Tensor) -> Tensor:
        """Over all ranks that have other tokens."""
        return summed(counts, self.ranks.batch)

    def whole_windows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Of the ranks that have tokens of the same windows; without padding."""
        windows = self.ranks.windows
        sizes = gathered(torch.tensor([len(positions)], device=x.device), [1] * windows.size(), windows).tolist()
        everywhere = gathered(positions, sizes, windows)
        order = everywhere.where(everywhere >= 0, everywhere.max() + 1).argsort(stable=True)
        rows = gathered(x.transpose(0, 1), sizes, windows)
        begin = sum(sizes[: windows.rank()])
        tokens = int((everywhere >= 0).sum())
        here = order.argsort()[begin : begin + len(positions)].clamp(max=tokens - 1)  # of padding: anything
        return rows[order[:tokens]].transpose(0, 1), lambda whole: whole[:, here]


def summed(counts: Tensor, communicator: Communicator) -> Tensor:
    """The sum of all ranks' counts."""
    total = counts.clone()
    if communicator.size() > 1:
        communicator.all_reduce(total)
    return total


def gathered(x: Tensor, sizes: list[int], communicator: Communicator) -> Tensor:
    """The rows of all ranks, of which rank i has sizes[i], one rank after another."""
    if communicator.size() == 1:
        return x
    most = max(sizes)
    padded = x.new_zeros(most, *x.shape[1:])
    padded[: len(x)] = x
    out = x.new_empty(len(sizes) * most, *x.shape[1:])
    communicator.all_gather(padded, out)
    return torch.cat([part[:size] for part, size in zip(out.split(most), sizes, strict=True)])


def slices(tokens: int, ranks: int) -> list[int]:
    """How many of so many tokens each of some ranks has: as `tensor_split` cuts them."""
    return [len(part) for part in torch.empty(tokens, device="meta").tensor_split(ranks)]


class CutTokens(Function):
    """`apply(x, ranks)`: this rank's slice of tokens that all ranks have, [B, S, D] -> [B, s, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Communicator) -> Tensor:
        ctx.ranks, ctx.tokens = ranks, x.shape[1]
        return own_slice(x, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return whole(gradient, ctx.ranks, ctx.tokens), None


class JoinTokens(Function):
    """`apply(x, ranks, tokens)`: the slices of all ranks, on each of them: [B, s, D] -> [B, S, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Communicator, tokens: int) -> Tensor:
        ctx.ranks = ranks
        return whole(x, ranks, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return own_slice(gradient, ctx.ranks), None, None


def own_slice(x: Tensor, ranks: Communicator) -> Tensor:
    """This rank's tokens of [B, S, D]."""
    return x.tensor_split(ranks.size(), 1)[ranks.rank()].contiguous()


def whole(x: Tensor, ranks: Communicator, tokens: int) -> Tensor:
    """The tokens of all ranks: [B, s, D] -> [B, S, D]."""
    return gathered(x.transpose(0, 1), slices(tokens, ranks.size()), ranks).transpose(0, 1).contiguous()
