"""Ring attention: blocks of keys and values travel around while the one before is computed.

This is `plain.ring_forward` and `plain.ring_backward` with: messages in flight while a rank computes, only those pairs
of tokens that the mask leaves, kernels that keep no matrix of scores, and sums in float32.

    step s    rank r has the block of rank r - s, computes with it, and sends it to r + 1
    backward  the same, and behind each block its gradient, to which every rank adds

A rank holds two blocks at a time, however many ranks there are. It sends n - 1 blocks forward; backward n - 1 blocks
and n gradients. Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers".
"""

import torch
from torch import Tensor

from reference.collectives.communicator import Finish

from .attention import BlockAttention, zeros_for
from .pieces import attend_, attend_backward_, nothing_yet
from .tokens import Mask, Piece, pieces


class RingAttention(BlockAttention):
    """Blocks go around a ring. Arguments as for `BlockAttention`."""

    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """n steps, n - 1 messages."""
        out, lse = nothing_yet(query)
        for step in range(self.ranks):
            arrives = self._pass_on(block) if step < self.ranks - 1 else None
            attend_(out, lse, query, *block, self._pieces(step, mask))
            block = arrives() if arrives else block
        return out, lse

    def backward(
        self, gradient: Tensor, query: Tensor, block: Tensor, out: Tensor, lse: Tensor, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """n steps; a block's gradient arrives after the block, and is passed on when this rank has added its part."""
        of_query, of_block, of_block_arrives = zeros_for(query), zeros_for(block), None
        for step in range(self.ranks):
            arrives = self._pass_on(block) if step < self.ranks - 1 else None
            attend_backward_(of_query, of_block, gradient, query, block, out, lse, self._pieces(step, mask))
            if of_block_arrives:
                of_block += of_block_arrives()
            if self.ranks > 1:
                of_block_arrives = self._pass_on(of_block)
                of_block = zeros_for(block)
            block = arrives() if arrives else block
        return of_query, of_block_arrives() if of_block_arrives else of_block

    def _pieces(self, step: int, mask: Mask) -> tuple[Piece, ...]:
        """What to compute with the block that is here in a step."""
        return pieces(self.own, self.tokens[(self.rank - step) % self.ranks], mask)

    def _pass_on(self, x: Tensor) -> Finish:
        """Send to the next rank; the result comes from the one before."""
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        return self.communicator.start_exchange(x, after, torch.empty_like(x), before)
