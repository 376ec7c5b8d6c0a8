"""Gossip in pairs: in each round the mean of two."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gossip(x: Tensor, partners: Sequence[int], group: ProcessGroup) -> None:
    """Average `x` with one partner after another, in place.

    Args:
        x: [N], of one length on all ranks.
        partners: of each round, the group rank whose partner this rank is; its own where it has none.
        group: n ranks.
    """
    for partner in partners:
        if partner == dist.get_rank(group):
            continue
        came = torch.empty_like(x)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, group=group, group_peer=partner),
                dist.P2POp(dist.irecv, came, group=group, group_peer=partner),
            ]
        )
        for work in works:
            work.wait()
        x.add_(came).div_(2)
