"""A replica heals piece by piece, and the others continue: what has come is updated along with theirs."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .momentum import momentum_step


def heal(
    state: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]], new: int, rate: float, group: ProcessGroup
) -> None:
    """Train for some steps while one replica, which has nothing, gets the state of the others: a piece in each step.

    Args:
        state: of each of P pieces [2, N] on all ranks but one: weight and momentum, equal on all of them; updated in
            place. On rank `new` they mean nothing at first.
        gradients: of each step, P or more of them, P gradients [N]. Those of rank `new` mean nothing. They are
            overwritten.
        new: group rank of the replica that heals.
        rate: of learning.
        group: n ranks, 2 or more.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    donor = (new + 1) % n
    for step, of_pieces in enumerate(gradients):
        if step < len(state) and rank == donor:
            dist.send(state[step], group=group, group_dst=new)
        if step < len(state) and rank == new:
            dist.recv(state[step], group=group, group_src=donor)
        flat = torch.cat(list(of_pieces))
        if rank == new:
            flat.zero_()
        dist.all_reduce(flat, group=group)
        for piece, gradient in enumerate(flat.tensor_split(len(state))):
            if rank != new or piece <= step:
                momentum_step(*state[piece], gradient / (n - 1), rate)
