"""A bias that keeps experts busy: it chooses, and weighs nothing.

The order matters. All micro-batches of a step choose with the bias that the step before has left; their counts are
summed over micro-batches and ranks; then the bias moves, once. A bias that moves by each rank's own counts drifts
apart from rank to rank, so that replicas choose different experts for equal tokens. The mean of all biases changes no
choice, and nothing holds it; so it is taken out (pytorch/torchtitan#1506).

Wang et al. 2024, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", algorithm 1.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def route_a_step(
    scores: Sequence[Tensor], bias: Tensor, k: int, rate: float, group: ProcessGroup
) -> list[tuple[Tensor, Tensor]]:
    """The experts of all tokens of a step, and their weights; then a step of the bias, in place.

    Args:
        scores: of each micro-batch, [T, E], of this rank's tokens; there may be none.
        bias: [E], the same on every rank.
        k: experts of a token.
        rate: how far a bias moves.
        group: n ranks, each with other tokens.

    Returns:
        For each micro-batch experts [T, k], the best first, and weights [T, k], which sum to one for each token.
    """
    routed, counts = [], torch.zeros_like(bias)
    for of_tokens in scores:
        chosen = (of_tokens.detach() + bias).topk(k).indices
        weights = of_tokens.gather(1, chosen)
        routed.append((chosen, weights / weights.sum(1, keepdim=True)))
        counts += torch.bincount(chosen.flatten(), minlength=len(bias))
    dist.all_reduce(counts, group=group)
    bias += rate * (counts.mean() - counts).sign()
    bias -= bias.mean()
    return routed
