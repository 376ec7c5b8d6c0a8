"""Attention between tokens that different ranks hold: what all ways have in common.

    attention = RingAttention(communicator, layout.tokens)
    out = attention(query, key, value, Mask())             [B, H, local, d] of queries; [B, K, local, d] of keys, values

`BlockAttention` is one autograd function for those ways that bring keys and values to the queries: what differs is how
they travel. The others (`ulysses`) rearrange heads and tokens, and have such a one inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.communicator import Communicator
from reference.dtypes import accumulator
from reference.errors import BadInput

from .tokens import CAUSAL, Mask, Tokens, length


class ContextAttention(Protocol):
    """A way for tokens on n ranks to look at each other. All ranks call it together, and its backward."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = CAUSAL, sink: Tensor | None = None
    ) -> Tensor:
        """What this rank's tokens get: [B, H, local, d].

        Args:
            query: [B, H, local, d].
            key, value: [B, K, local, d]; K divides H.
            mask: who sees whom.
            sink: [H], a logit of each head that takes its share of every softmax, and gives nothing (OpenAI 2025,
                gpt-oss); None for none.
        """


class BlockAttention(ABC):
    """Keys and values come to this rank's queries.

    Args:
        communicator: n ranks; None for one.
        tokens: what each of them holds.
    """

    def __init__(self, communicator: Communicator | None, tokens: Sequence[Tokens]) -> None:
        self.communicator, self.tokens = communicator, tuple(tokens)
        self.rank, self.ranks = (communicator.rank(), communicator.size()) if communicator else (0, 1)
        if len(self.tokens) != self.ranks:
            raise BadInput(f"there are tokens of {len(self.tokens)} ranks, and a group of {self.ranks}")
        if len({length(held) for held in self.tokens}) > 1:
            raise BadInput("each rank holds equally many tokens: pad those that have fewer")
        self.own = self.tokens[self.rank]

    @abstractmethod
    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Of this rank's queries the output [B, H, local, d] and logsumexps; `block` [2, B, K, local, d] is its own."""

    @abstractmethod
    def backward(
        self, gradient: Tensor, query: Tensor, block: Tensor, out: Tensor, lse: Tensor, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """Gradients of this rank's queries, and of its own block."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = CAUSAL, sink: Tensor | None = None
    ) -> Tensor:
        """As for `ContextAttention`.

        Raises:
            BadInput: if there are other tokens than this rank holds, or heads do not divide.
        """
        check_inputs(query, key, value, length(self.own))
        return _Attention.apply(self, mask, query, key, value, sink)


def check_inputs(query: Tensor, key: Tensor, value: Tensor, tokens: int) -> None:
    """Raises BadInput for other tokens than the rank holds, or heads of keys that do not divide those of queries."""
    for given in (query, key, value):
        if given.shape[2] != tokens:
            raise BadInput(f"this rank holds {tokens} tokens, and is given {given.shape[2]}")
    if query.shape[1] % key.shape[1]:
        raise BadInput(f"{key.shape[1]} heads of keys do not serve {query.shape[1]} of queries equally")


class _Attention(Function):
    """`apply(way, mask, query, key, value, sink)`."""

    @staticmethod
    def forward(
        ctx: Any, way: BlockAttention, mask: Mask, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None
    ) -> Tensor:
        block = torch.stack([key, value])
        out, lse = way.forward(query, block, mask)
        if sink is not None:
            lse = with_sink_(out, lse, sink)
        out = out.to(query.dtype)
        ctx.way, ctx.mask = way, mask
        ctx.save_for_backward(query, block, out, lse, sink)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, block, out, lse, sink = ctx.saved_tensors
        of_query, of_block = ctx.way.backward(gradient.contiguous(), query, block, out, lse, ctx.mask)
        of_key, of_value = of_block.to(block.dtype)
        of_sink = None
        if sink is not None:
            taken = (sink[:, None] - lse).exp() * (gradient * out).sum(-1, dtype=lse.dtype)
            of_sink = -taken.sum(dim=(0, 2)).to(sink.dtype)
        return None, None, of_query.to(query.dtype), of_key, of_value, of_sink


def with_sink_(out: Tensor, lse: Tensor, sink: Tensor) -> Tensor:
    """Let a logit of each head take its share: `out` shrinks in place. Returns the logsumexps with it."""
    both = torch.logaddexp(lse, sink[:, None].to(lse.dtype))
    out.mul_((lse - both).exp()[..., None])
    return both


def zeros_for(x: Tensor) -> Tensor:
    """Where the gradient of `x` adds up."""
    return torch.zeros_like(x, dtype=accumulator(x.dtype))
