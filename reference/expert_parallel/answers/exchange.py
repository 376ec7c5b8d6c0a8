"""Rows to the ranks that have their experts, and back: counts first, then the rows, then what was made of them.

An expert has rows of all ranks. A receiver must know how many come, from each rank and for each of its experts: from
each rank, because that is where rows lie in what has arrived; for each expert, because only so can they be regrouped.

Lepikhin et al. 2020, "GShard", algorithm 1; Gale et al. 2022, "MegaBlocks"; the dispatchers of DeepEP and torchtitan.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.differentiable import Conjugate


def exchange_rows(x: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Rows to other ranks, through which autograd goes back: gradients travel the other way. One call each way.

    Args:
        x: [sum of sent, ...], rows of rank 0 first.
        sent: how many rows go to each rank.
        received: how many come from each rank: what its `sent` says for this one.
        group: n ranks.

    Returns:
        [sum of received, ...], rows from rank 0 first.
    """

    def exchanged(rows: Tensor, there: list[int], back: list[int]) -> Tensor:
        out = rows.new_empty(sum(back), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), back, there, group=group)
        return out

    return Conjugate.apply(
        x, lambda rows: exchanged(rows, sent, received), lambda gradient: exchanged(gradient, received, sent)
    )


def counts_first(chosen: Tensor, experts: int, group: ProcessGroup) -> tuple[list[int], list[int], Tensor]:
    """How many rows go to each rank, and how many come from it, for which of this rank's experts.

    Args:
        chosen: [T, k] of int64, experts of this rank's tokens; T may be 0.
        experts: E; the r-th E / n of them are on rank r.
        group: n ranks.

    Returns:
        How many rows this rank sends to each; how many it receives from each; and these for each of its experts,
        [n, E / n] of int64.
    """
    n = dist.get_world_size(group)
    wanted = torch.bincount(chosen.flatten(), minlength=experts).view(n, -1)
    counts = torch.empty_like(wanted)
    dist.all_to_all_single(counts, wanted, group=group)
    return wanted.sum(1).tolist(), counts.sum(1).tolist(), counts


def dispatch(x: Tensor, chosen: Tensor, counts: Tensor, group: ProcessGroup) -> Tensor:
    """The rows that this rank's experts have to compute, in the order of experts, ranks and tokens.

    Args:
        x: [T, D], this rank's tokens.
        chosen: [T, k] of int64.
        counts: [n, E / n], how many rows come from each rank for each expert of this one.
        group: n ranks.

    Returns:
        [N, D].
    """
    n, here = counts.shape
    order = chosen.flatten().argsort(stable=True)
    sent = torch.bincount(chosen.flatten() // here, minlength=n).tolist()
    rows = exchange_rows(x[order // chosen.shape[1]], sent, counts.sum(1).tolist(), group)
    expert_of_row = torch.arange(here).repeat(n).repeat_interleave(counts.flatten())
    return rows[expert_of_row.argsort(stable=True)]


def combine(made: Tensor, counts: Tensor, chosen: Tensor, weights: Tensor, group: ProcessGroup) -> Tensor:
    """What all ranks' experts have made of this rank's tokens, weighed and added.

    Args:
        made: [N, D], what this rank's experts have made of the rows that `dispatch` gave them.
        counts: [n, E / n], as for `dispatch`.
        chosen: [T, k] of int64.
        weights: [T, k].
        group: n ranks.

    Returns:
        [T, D].
    """
    n, here = counts.shape
    expert_of_row = torch.arange(here).repeat(n).repeat_interleave(counts.flatten())
    by_rank = made[expert_of_row.argsort(stable=True).argsort()]
    back = torch.bincount(chosen.flatten() // here, minlength=n).tolist()
    rows = exchange_rows(by_rank, counts.sum(1).tolist(), back, group)
    order = chosen.flatten().argsort(stable=True)
    of_choices = rows[order.argsort()].view(-1, chosen.shape[1], rows.shape[1])
    return (of_choices * weights[..., None]).sum(1)
