"""The first three programs of many processes: hand over, swap, pass on.

Every rank runs the same text. What differs is its rank, so the text asks for it.

| program    | steps | bytes sent by a rank | beware                                                           |
|------------|-------|----------------------|------------------------------------------------------------------|
| hand_over  | 1     | size, by the source  |                                                                  |
| swap       | 1     | size                 | both `send`, then both `recv`: a deadlock                        |
| ring_shift | 1     | size; none if n = 1  | `send` then `recv` on every rank: n messages wait for each other |

Posted as one batch, messages cross on gloo and on NCCL. (`isend`, `recv`, `wait` may hang on NCCL, which runs calls in
order; if the lower rank sends first, it is two steps.)
"""

import torch
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


def swap(x: Tensor, partner: int, group: ProcessGroup) -> Tensor:
    """What `partner` holds, while it gets `x`.

    Args:
        x: contiguous, the same shape and dtype on both. It stays as it is.
        partner: group rank of the other one, whose partner is this rank; this rank itself where it has none.
        group: the ranks that call this.

    Returns: a new tensor like `x`.
    """
    if partner == dist.get_rank(group):
        return x.clone()
    received = torch.empty_like(x)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group=group, group_peer=partner),
            dist.P2POp(dist.irecv, received, group=group, group_peer=partner),
        ]
    )
    for work in works:
        work.wait()
    return received


def ring_shift(x: Tensor, group: ProcessGroup) -> Tensor:
    """What the left neighbour holds, while the right neighbour gets `x`.

    Args:
        x: contiguous, the same shape and dtype on every rank. It stays as it is.
        group: n ranks in a ring: rank r's right neighbour is (r + 1) % n.

    Returns: a new tensor like `x`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return x.clone()
    received = torch.empty_like(x)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n),
        ]
    )
    for work in works:
        work.wait()
    return received
