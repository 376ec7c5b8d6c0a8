"""Attention of one rank's queries to one block of keys, piece by piece: forward and backward, added to what there is.

Sums are kept in float32 where tokens are in 16 bits: so an error does not grow with the number of blocks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.dtypes import accumulator

from . import kernels
from .tokens import AttentionPiece


def nothing_yet(query: Tensor) -> tuple[Tensor, Tensor]:
    """What queries [B, H, Q, d] have got of no keys at all: zeros, and the logsumexp -inf [B, H, Q]."""
    dtype = accumulator(query.dtype)
    return torch.zeros_like(query, dtype=dtype), query.new_full(query.shape[:3], -torch.inf, dtype=dtype)


def attend_(
    out: Tensor, lse: Tensor, query: Tensor, key: Tensor, value: Tensor, pieces: Sequence[AttentionPiece]
) -> None:
    """Add to `out` and `lse` what queries get of a block, in place.

    Args:
        out, lse: of `nothing_yet`, or with blocks in it.
        query: [B, H, Q, d].
        key, value: [B, K, S, d].
        pieces: what is to be computed.
    """
    for piece in pieces:
        q, k = slice(*piece.queries), slice(*piece.keys)
        got, got_lse = kernels.forward(query[:, :, q], key[:, :, k], value[:, :, k], piece.causal, _mask(piece))
        merge_(out[:, :, q], lse[:, :, q], got, got_lse)


def merge_(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """As `plain.merge`, in place of `out` and `lse`."""
    both = torch.logaddexp(lse, other_lse)
    finite = both.masked_fill(both == -torch.inf, 0.0)
    out.mul_((lse - finite).exp_()[..., None]).addcmul_(other.to(out.dtype), (other_lse - finite).exp_()[..., None])
    lse.copy_(both)


def attend_backward_(
    of_query: Tensor,
    of_block: Tensor,
    gradient: Tensor,
    query: Tensor,
    block: Tensor,
    out: Tensor,
    lse: Tensor,
    pieces: Sequence[AttentionPiece],
) -> None:
    """Add to `of_query` [B, H, Q, d] and `of_block` [2, B, K, S, d] this block's part of the gradients, in place.

    Args:
        gradient: of the output, [B, H, Q, d].
        query: [B, H, Q, d].
        block: keys and values, [2, B, K, S, d].
        out, lse: the final ones of these queries.
        pieces: what was computed.
    """
    lse = lse.masked_fill(lse == -torch.inf, 0.0)  # of who sees nothing: masked scores leave nothing of it
    for piece in pieces:
        q, k = slice(*piece.queries), slice(*piece.keys)
        key, value = block[:, :, :, k]
        more, *of_these = kernels.backward(
            gradient[:, :, q], query[:, :, q], key, value, out[:, :, q], lse[:, :, q], piece.causal, _mask(piece)
        )
        of_query[:, :, q] += more
        for of_one, found in zip(of_block[:, :, :, k], of_these, strict=True):
            of_one += found


def _mask(piece: AttentionPiece) -> Tensor | None:
    return None if piece.causal or piece.full else piece.mask()
