"""A mixture of experts over ranks, as the papers write it: five steps there and back.

    count       how many of this rank's choices each expert got
    permute     a row for each choice, in the order of the experts, so in that of the ranks that have them
    exchange    counts first, since a receiver must know how many rows come; then the rows
    compute     each expert on the rows that all ranks have sent it
    back        the same exchange the other way; then each token adds up what its experts made of it

Its backward is the same: the gradient of an exchange is the exchange the other way. Lepikhin et al. 2020, "GShard",
algorithm 1 and sec. 3.2; Gale et al. 2022, "MegaBlocks", for rows without a capacity.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.differentiable import all_to_all_uneven


def mixture(x: Tensor, chosen: Tensor, weights: Tensor, experts: Sequence, ranks: ProcessGroup) -> Tensor:
    """What all experts make of this rank's tokens.

    Args:
        x: [T, D], tokens of this rank; there may be none.
        chosen: [T, k] of int64, experts of each token, of E.
        weights: [T, k], of what they make.
        experts: those of this rank, E / n of them in order: functions from rows to rows.
        ranks: n, each with other tokens and other experts.

    Returns:
        [T, D].
    """
    n, here, k = ranks.size(), len(experts), chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    sent = torch.bincount(chosen.flatten(), minlength=n * here).view(n, here)
    received = all_to_all_uneven(sent, [1] * n, [1] * n, ranks)  # [n, E / n]: from each rank, for each expert here
    there, back = sent.sum(1).tolist(), received.sum(1).tolist()

    rows = all_to_all_uneven(x[order // k], there, back, ranks)
    by_expert = torch.arange(here).repeat(n).repeat_interleave(received.flatten()).argsort(stable=True)
    groups = rows[by_expert].split(received.sum(0).tolist())
    made = torch.cat([expert(group) for expert, group in zip(experts, groups, strict=True)])

    made = all_to_all_uneven(made[by_expert.argsort()], back, there, ranks)
    of_choices = made[order.argsort()].view(len(x), k, made.shape[1])
    return (of_choices * weights[..., None]).sum(1)
