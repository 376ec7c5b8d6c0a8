"""Attention over a ring of ranks, as the papers write it: forward and backward, from sends and receives.

Softmax over all keys is a sum, and a sum can be made block by block if the logsumexp of each part is kept:

    out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b        lse = log(e^lse_a + e^lse_b)

So each rank keeps its queries, and blocks of keys and values travel around. In backward they travel once more, and
gradients of keys and values with them, each rank adding what its queries make of them: after n steps they are back at
the rank whose keys they belong to.

Rabe and Staats 2021, "Self-attention does not need O(n²) memory"; Milakov and Gimelshein 2018, "Online normalizer
calculation for softmax"; Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers".
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.default import over

Masks = Callable[[int, int], Tensor | None]
"""Which tokens of rank i see which of rank j: [S_i, S_j] of bool, or None if all do."""


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries [B, H, Q, d] look at one block of keys [B, K, S, d]: what they get, and their logsumexps [B, H, Q]."""
    scores = _scores(query, key, seen)
    lse = scores.logsumexp(-1)
    return _exp(scores, lse[..., None]) @ heads_for(value, query), lse


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """What the same queries get of two blocks together. One that saw nothing has the logsumexp -inf."""
    both = torch.logaddexp(lse, other_lse)
    share, other_share = (_exp(x, both)[..., None] for x in (lse, other_lse))
    return share * out + other_share * other, both


def attend_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One block's part of the gradients, by the out and lse of all blocks together."""
    probabilities = _exp(_scores(query, key, seen), lse[..., None])
    of_probabilities = gradient @ heads_for(value, query).mT
    of_scores = probabilities * (of_probabilities - (gradient * out).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
    of_key, of_value = of_scores.mT @ query, probabilities.mT @ gradient
    return of_scores @ heads_for(key, query), *(x.unflatten(1, (key.shape[1], -1)).sum(2) for x in (of_key, of_value))


def ring_forward(query: Tensor, key: Tensor, value: Tensor, masks: Masks, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Attention of this rank's queries to the keys of all ranks: each block passes by, and is merged."""
    rank, n = group.rank(), group.size()
    block = torch.stack([key, value])
    out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
    for step in range(n):
        out, lse = merge(out, lse, *attend(query, *block, masks(rank, (rank - step) % n)))
        if step < n - 1:
            block = _pass_on(block, group)
    return out, lse


def ring_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    masks: Masks,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of this rank's queries, keys and values."""
    rank, n = group.rank(), group.size()
    block, of_query = torch.stack([key, value]), torch.zeros_like(query)
    of_block = torch.zeros_like(block)
    for step in range(n):
        more, *of_these = attend_backward(gradient, query, *block, out, lse, masks(rank, (rank - step) % n))
        of_query, of_block = of_query + more, of_block + torch.stack(of_these)
        of_block = _pass_on(of_block, group)  # n times: the last brings it back to whom it belongs
        if step < n - 1:
            block = _pass_on(block, group)
    return of_query, *of_block


def heads_for(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each head of queries: [B, K, S, d] -> [B, H, S, d]."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def _pass_on(x: Tensor, group: ProcessGroup) -> Tensor:
    """Give it to the next rank, and get that of the one before."""
    rank, n, incoming = group.rank(), group.size(), torch.empty_like(x)
    return over(group).start_exchange(x, (rank + 1) % n, incoming, (rank - 1) % n)() if n > 1 else x


def _scores(query: Tensor, key: Tensor, seen: Tensor | None) -> Tensor:
    scores = query @ heads_for(key, query).mT * query.shape[-1] ** -0.5
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def _exp(x: Tensor, lse: Tensor) -> Tensor:
    """e^(x - lse); zero where nothing is seen at all, so that both are -inf."""
    return (x - lse.masked_fill(lse == -torch.inf, 0.0)).exp()
