"""A majority vote on signs, of one bit on the way there and one on the way back."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .sign_bits import pack, unpack


def majority_vote(gradient: Tensor, group: ProcessGroup) -> Tensor:
    """In each place the sign that most ranks have there.

    Args:
        gradient: [N] of this rank; 8 n divides N.
        group: n ranks. Any n.

    Returns:
        [N] of 1 and -1 in float64, the same on every rank; 1 where the ranks are even.
    """
    n = dist.get_world_size(group)
    votes = pack(gradient.view(n, -1))
    received = torch.empty_like(votes)
    dist.all_to_all_single(received, votes, group=group)
    outcome = pack(unpack(received).sum(0))
    outcomes = votes.new_empty(votes.numel())
    dist.all_gather_into_tensor(outcomes, outcome, group=group)
    return unpack(outcomes)
