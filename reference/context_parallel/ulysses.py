"""Ulysses: an all-to-all brings each rank all tokens of some heads, and another one brings the outputs back.

Attention treats each head by itself, everything else each token. So between the two the ranks transpose:

    some tokens, all heads  --all-to-all-->  all tokens, some heads  --attention-->  --all-to-all-->  some tokens

A rank sends (n - 1) / n of its queries, keys, values and outputs, once each way: less the more ranks there are, where
for a ring and an all-gather it stays the same. But there are no more ranks than heads. Keys and values may have fewer
heads than there are ranks, or a number that n does not divide: then there are copies of each, for the least number of
heads that n divides, and the gradients of copies are summed. Heads of queries that n does not divide are refused:
sharing them out unevenly would let ranks wait for the one that has most of them.

What happens to the heads that a rank has is another way's business: a ring among other ranks makes it USP (Fang and
Zhao 2024, "USP: a unified sequence parallelism approach"). Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

from collections.abc import Sequence
from math import lcm

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.collectives.differentiable import Conjugate
from reference.errors import BadInput

from .attention import ContextAttention, check_inputs
from .tokens import CAUSAL, Mask, Tokens, in_order, length


class UlyssesAttention:
    """Heads are shared out for as long as attention lasts.

    Args:
        communicator: n ranks.
        tokens: what each of them holds.
        inside: attention of all of these tokens, in order, for some heads.
    """

    def __init__(self, communicator: Communicator, tokens: Sequence[Tokens], inside: ContextAttention) -> None:
        self.communicator, self.ranks, self.inside = communicator, communicator.size(), inside
        self.local = length(tokens[communicator.rank()])
        _, self._there, self._back = in_order(sum(tokens, ()))

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = CAUSAL, sink: Tensor | None = None
    ) -> Tensor:
        """As for `ContextAttention`.

        Raises:
            BadInput: if the number of ranks does not divide the heads of queries, or as for `BlockAttention`.
        """
        check_inputs(query, key, value, self.local)
        heads, shared = query.shape[1], key.shape[1]
        if heads % self.ranks:
            raise BadInput(
                f"{heads} heads of queries do not divide among {self.ranks} ranks: take ranks that divide it"
            )
        copies = lcm(shared, self.ranks) // shared
        sizes = [many // self.ranks for many in (heads, copies * shared, copies * shared)]
        here = slice(self.communicator.rank() * sizes[0], (self.communicator.rank() + 1) * sizes[0])
        out = self.inside(
            *self._to_heads(self._packed(query, copied(key, copies), copied(value, copies)), sizes),
            mask,
            None if sink is None else sink[here],
        )
        return self._to_tokens(out)

    def _packed(self, *given: Tensor) -> Tensor:
        """What each rank gets: n times [B, heads, local, d] -> [n, B, all heads / n, local, d]."""
        return torch.cat([x.unflatten(1, (self.ranks, -1)).movedim(1, 0) for x in given], dim=2)

    def _to_heads(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """[n, B, all heads / n, local, d] -> so many heads of each, [B, heads / n, n local, d], tokens in order."""
        x = self._all_to_all(x)
        x = x.movedim(0, 2).flatten(2, 3)
        return [each.index_select(2, self._there.to(x.device)) for each in x.split(sizes, dim=1)]

    def _to_tokens(self, x: Tensor) -> Tensor:
        """[B, heads / n, n local, d] -> [B, heads, local, d]."""
        x = x.movedim(2, 0).index_select(0, self._back.to(x.device))
        x = self._all_to_all(x.unflatten(0, (self.ranks, -1)))
        return x.permute(2, 0, 3, 1, 4).flatten(1, 2)

    def _all_to_all(self, x: Tensor) -> Tensor:
        """Part j goes to rank j: [n, ...] -> [n, ...]. Its backward is the same."""

        def exchanged(x: Tensor) -> Tensor:
            x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
            self.communicator.all_to_all(x, out)
            return out

        return Conjugate.apply(x, exchanged, exchanged)


def copied(x: Tensor, copies: int) -> Tensor:
    """So many of each head, side by side: [B, K, S, d] -> [B, K copies, S, d]."""
    return x if copies == 1 else x.repeat_interleave(copies, dim=1)
