"""Tokens go to the ranks that have their experts, and what these make comes back.

This is `plain.mixture` with: experts in blocks of any sizes, matrices of experts that several ranks share, chunks of
tokens that travel while others are computed, and counts that travel while rows are put in order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.models.by_expert import ChoicesByExpert, Compute, add_up

from .exchange import Exchange, exchange_counts, start_exchange


class Dispatch:
    """Experts in blocks on the ranks of one group.

    Args:
        ranks: ep of them, each with some of the experts.
        experts: E, on all of them: as many on each, the last ones with fewer if they do not divide.
        sharing: etp ranks that share each matrix of the same experts; None for one.
        chunks: in how many parts tokens travel.
    """

    def __init__(self, ranks: Communicator, experts: int, sharing: Communicator | None = None, chunks: int = 1) -> None:
        self.ranks, self.experts, self.sharing, self.chunks = ranks, experts, sharing, chunks
        self.of_rank = -(-experts // ranks.size())  # experts, as `sharding.block_of` cuts them
        first = min(ranks.rank() * self.of_rank, experts)
        self.here = min(self.of_rank, experts - first)  # experts of this rank

    def start(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """As `Ops.start_experts`: [B, S, D] -> [B, S, D], when it is finished. All ranks of the group call it."""
        tokens, flat_chosen, flat_weights = (each.flatten(0, 1)[None] for each in (x, chosen, weights))
        of_chunks = flat_chosen.tensor_split(self.chunks, 1)  # of one long window: of one size, whatever windows are
        choices = [ChoicesByExpert.of(each, self.experts) for each in of_chunks]
        sent = torch.stack([self._by_rank(each.counts) for each in choices], dim=1)  # [ep, chunks, experts of a rank]
        arriving_counts = exchange_counts(sent, self.ranks)  # which travel while rows are put in order
        rows = [each.rows(part) for each, part in zip(choices, tokens.tensor_split(self.chunks, 1), strict=True)]
        received = arriving_counts().unbind(1)
        there = [
            Exchange(self.ranks, out.sum(1).tolist(), into.sum(1).tolist())
            for out, into in zip(sent.unbind(1), received, strict=True)
        ]
        arriving = [start_exchange(part, exchange) for part, exchange in zip(rows, there, strict=True)]
        made = [
            start_exchange(self._compute(compute, arrive(), counts), exchange.reversed())
            for arrive, counts, exchange in zip(arriving, received, there, strict=True)
        ]

        def finish() -> Tensor:
            of_choices = torch.cat([each.back(arrive()) for each, arrive in zip(choices, made, strict=True)], dim=1)
            return add_up(of_choices, flat_weights).view_as(x)

        return finish

    def _by_rank(self, counts: Tensor) -> Tensor:
        """[E] -> [ep, experts of a rank]; the last ranks may have fewer."""
        padded = counts.new_zeros(self.ranks.size() * self.of_rank)
        padded[: self.experts] = counts
        return padded.view(self.ranks.size(), -1)

    def _compute(self, compute: Compute, rows: Tensor, counts: Tensor) -> Tensor:
        """Experts of this rank on the rows of all ranks, which come rank by rank: [N, D] -> [N, D].

        Args:
            compute: of this rank's experts.
            rows: in the order of their ranks, and in there of experts.
            counts: [ep, experts of a rank], of these rows.
        """
        if self.sharing is not None:
            return self._shared(compute, rows, counts)
        return in_order(compute, rows, counts[:, : self.here])

    def _shared(self, compute: Compute, rows: Tensor, counts: Tensor) -> Tensor:
        """Ranks that share matrices compute all rows of all of them, each a part of every sum."""
        etp = self.sharing.size()
        of_all = exchange_counts(counts.expand(etp, *counts.shape), self.sharing)()  # [etp, ep, experts of a rank]
        numbers = of_all.sum((1, 2)).tolist()
        spread = Exchange(self.sharing, [len(rows)] * etp, numbers)
        everything = start_exchange(rows.repeat(etp, 1), spread)()
        parts = in_order(compute, everything, of_all.flatten(0, 1)[:, : self.here])
        return start_exchange(parts, spread.reversed())().view(etp, *rows.shape).sum(0)


def in_order(compute: Compute, rows: Tensor, counts: Tensor) -> Tensor:
    """Let experts compute rows that come from several sources: [N, D] -> [N, D].

    Args:
        compute: from rows in the order of experts.
        rows: in the order of their sources, and in there of experts.
        counts: [sources, experts], of these rows, on the CPU.
    """
    sources, experts = counts.shape
    of_row = torch.arange(experts).repeat(sources).repeat_interleave(counts.flatten()).to(rows.device)
    by_expert = of_row.argsort(stable=True)
    made = compute(rows[by_expert], counts.sum(0).tolist())
    return made.new_empty(made.shape).index_copy(0, by_expert, made)
