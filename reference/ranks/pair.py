"""The first program of two: one rank has a tensor, another one needs it.

| steps | bytes sent by the source |
|-------|--------------------------|
| 1     | size                     |

Every rank runs the same text. What differs is its rank, so the text asks for it.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def hand_over(x: Tensor, source: int, target: int, group: ProcessGroup) -> None:
    """Give `target` the `x` of `source`, in place; nothing happens on any other rank.

    Args:
        x: contiguous, the same shape and dtype on every rank. On `target` it is overwritten.
        source: group rank that sends.
        target: group rank that receives; it may be the source itself.
        group: the ranks that call this.
    """
    rank = dist.get_rank(group)
    if source == target:
        return
    if rank == source:
        dist.send(x, group=group, group_dst=target)
    elif rank == target:
        dist.recv(x, group=group, group_src=source)
