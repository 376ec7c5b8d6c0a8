"""Attention block by block, as one rank computes it: what two blocks give together, with gradients.

`plain.merge` is what a ring calls, which never goes backward through it. Here autograd does: so a query that sees
nothing, where 0 / 0 and inf - inf lurk, has to be kept out of every quotient and every logarithm, and not only out of
the result: the gradient of what a mask replaces is 0 times whatever stands there, and 0 times NaN is NaN.
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
