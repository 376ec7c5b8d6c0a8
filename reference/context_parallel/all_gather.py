"""All-gather: each rank gets all keys and values, and computes its queries' part (Llama 3, Dubey et al. 2024).

As many bytes as a ring, in one collective each way, and a few large kernels in the place of n small ones. It holds the
keys and values of all tokens while it computes; where few heads of keys serve many of queries, that is little. They
are gathered again in backward. Any mask is easy, for all keys lie in their order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import BlockAttention, zeros_for
from .pieces import attend_, attend_backward_, nothing_yet
from .tokens import Mask, Tokens, in_order, length, pieces


class AllGatherAttention(BlockAttention):
    """All blocks come at once. Arguments as for `BlockAttention`."""

    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """One all-gather."""
        keys, places = self._in_order()
        blocks = self._gather(block, places)
        out, lse = nothing_yet(query)
        attend_(out, lse, query, *blocks, pieces(self.own, keys, mask))
        return out, lse

    def backward(
        self, gradient: Tensor, query: Tensor, block: Tensor, out: Tensor, lse: Tensor, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """One all-gather, and one reduce-scatter of all keys' and values' gradients."""
        keys, places = self._in_order()
        blocks = self._gather(block, places)
        of_query, of_blocks = zeros_for(query), zeros_for(blocks)
        attend_backward_(of_query, of_blocks, gradient, query, blocks, out, lse, pieces(self.own, keys, mask))
        return of_query, self._scatter(of_blocks, places)

    def _in_order(self) -> tuple[Tokens, list[Tensor]]:
        """The tokens of all ranks in order, and for each rank where its tokens are there."""
        keys, _, places = in_order(sum(self.tokens, ()))
        return keys, list(places.split(length(self.own)))

    def _gather(self, block: Tensor, places: Sequence[Tensor]) -> Tensor:
        """All blocks, their tokens in order: [2, B, K, local, d] -> [2, B, K, n local, d]."""
        blocks = block.contiguous()[None]
        if self.ranks > 1:
            blocks = block.new_empty(self.ranks, *block.shape)
            self.communicator.all_gather(block.contiguous(), blocks)
        in_order = block.new_empty(*block.shape[:-2], self.ranks * block.shape[-2], block.shape[-1])
        for of_rank, where in zip(blocks, places, strict=True):
            in_order.index_copy_(-2, where.to(block.device), of_rank)
        return in_order

    def _scatter(self, of_blocks: Tensor, places: Sequence[Tensor]) -> Tensor:
        """Of the sum over ranks this rank's block: [2, B, K, n local, d] -> [2, B, K, local, d]."""
        parts = torch.stack([of_blocks.index_select(-2, where.to(of_blocks.device)) for where in places])
        if self.ranks == 1:
            return parts[0]
        own = torch.empty_like(parts[0])
        self.communicator.reduce_scatter(parts, own)
        return own
