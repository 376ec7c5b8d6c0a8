"""Which choices of a window have room, where the tokens of the window lie on several ranks.

An expert takes its even share of a window's choices, times a factor. Which choices come first must not depend on where
tokens are: all first choices of the window come before all second ones. So each rank has to know how often the ranks
before it have chosen each expert, and how often all ranks have done so with choices that come before.

Lepikhin et al. 2020, "GShard", sec. 3.2; Fedus et al. 2021, "Switch transformers", sec. 2.2.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single


def room_for(chosen: Tensor, experts: int, capacity: float, group: ProcessGroup) -> Tensor:
    """Which choices of this rank's tokens their experts have room for.

    Args:
        chosen: [T, k] of int64, the experts of this rank's tokens, the r-th slice of a window.
        experts: E.
        capacity: how many choices an expert takes, as a multiple of an even share.
        group: n ranks.

    Returns:
        [T, k] of bool.
    """
    k = chosen.shape[1]
    wanted = torch.nn.functional.one_hot(chosen.T, experts)  # [k, T, E]
    of_ranks = chosen.new_empty(dist.get_world_size(group), k, experts)
    all_gather_single(of_ranks.flatten(0, 1), wanted.sum(1), group=group)
    earlier_choices = of_ranks.sum(0).cumsum(0) - of_ranks.sum(0)  # [k, E], of all ranks
    earlier_ranks = of_ranks[: dist.get_rank(group)].sum(0)
    places = wanted.cumsum(1) + (earlier_choices + earlier_ranks)[:, None]  # the first in an expert has place 1
    room = math.ceil(capacity * of_ranks.sum().item() / experts)
    return (places <= room).gather(2, chosen.T[..., None])[..., 0].T
