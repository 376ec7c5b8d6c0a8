"""Ranks speak in order: a token goes from hand to hand, and the rank that holds it may speak.

| way to take turns         | steps           | bytes sent by a rank |
|---------------------------|-----------------|----------------------|
| a token along the ranks   | n-1             | 4                    |
| a barrier after each turn | n · ceil(log2 n) | 0                    |

`time.sleep(rank)` takes no step and gives no order: ranks share no clock that they must obey. Only a message orders.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def take_turns(speak: Callable[[], None], group: ProcessGroup) -> None:
    """Call `speak` once on every rank: on rank r only after it has returned on rank r - 1.

    Args:
        speak: what to do when it is this rank's turn.
        group: the ranks that take turns.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, group=group, group_src=rank - 1)
    speak()
    if rank < n - 1:
        dist.send(token, group=group, group_dst=rank + 1)
