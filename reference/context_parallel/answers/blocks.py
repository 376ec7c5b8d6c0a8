"""Attention block by block, as one rank computes it, with gradients: what two blocks give together, and many.

`merge`: `plain.merge` is what a ring calls, which never goes backward through it. Here autograd does: so a query that
sees nothing, where 0 / 0 and inf - inf lurk, has to be kept out of every quotient and every logarithm, and not only out
of the result: the gradient of what a mask replaces is 0 times whatever stands there, and 0 times NaN is NaN.

`attention_in_blocks`: autograd would keep the scores of every block, S x S numbers in all. So backward is written out;
it makes the scores again, from what forward keeps: queries, keys, values, out and lse.
"""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """What the same queries get of two blocks of keys together, with gradients.

    Args:
        out, other: [B, H, Q, d], what queries got of each block.
        lse, other_lse: [B, H, Q], the logsumexp of their scores; -inf where a query sees nothing of a block.

    Returns:
        [B, H, Q, d] and [B, H, Q], of both blocks.

    Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    largest = torch.maximum(lse, other_lse).detach()
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    share, other_share = (lse - largest).exp(), (other_lse - largest).exp()
    nothing = share + other_share == 0
    total = (share + other_share).masked_fill(nothing, 1.0)
    both = (share.unsqueeze(-1) * out + other_share.unsqueeze(-1) * other) / total.unsqueeze(-1)
    return both, (largest + total.log()).masked_fill(nothing, -torch.inf)


def attention_in_blocks(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, block: int) -> Tensor:
    """Attention to so many keys at a time, with gradients; scores exist for one block alone.

    Args:
        query: [B, H, Q, d].
        key, value: [B, H, S, d].
        seen: [Q, S] of bool.
        block: keys at a time. The last block may have fewer.

    Returns:
        [B, H, Q, d]; 0 where a query sees nothing.

    Dao et al. 2022, "FlashAttention", algorithms 1 and 4; Rabe and Staats 2021, "Self-attention does not need O(n²)
    memory".
    """
    return _InBlocks.apply(query, key, value, seen, block)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, seen, block):
        out, lse = torch.zeros_like(query), query.new_full(query.shape[:-1], -torch.inf)
        for begin in range(0, key.shape[2], block):
            here = slice(begin, begin + block)
            scores = _scores(query, key[:, :, here], seen[:, here])
            both = torch.logaddexp(lse, scores.logsumexp(-1))
            out = _exp(lse.unsqueeze(-1), both) * out + _exp(scores, both) @ value[:, :, here]
            lse = both
        ctx.save_for_backward(query, key, value, seen, out, lse)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, seen, out, lse = ctx.saved_tensors
        of_query, of_key, of_value = (torch.zeros_like(x) for x in (query, key, value))
        mean = (gradient * out).sum(-1, keepdim=True)
        for begin in range(0, key.shape[2], ctx.block):
            here = slice(begin, begin + ctx.block)
            weights = _exp(_scores(query, key[:, :, here], seen[:, here]), lse)
            of_value[:, :, here] = weights.mT @ gradient
            of_scores = weights * (gradient @ value[:, :, here].mT - mean) * query.shape[-1] ** -0.5
            of_query += of_scores @ key[:, :, here]
            of_key[:, :, here] = of_scores.mT @ query
        return of_query, of_key, of_value, None, None


def _scores(query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    return (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)


def _exp(scores: Tensor, lse: Tensor) -> Tensor:
    """e^(scores - lse); 0 where nothing is seen, and both are -inf."""
    return (scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)).exp()
