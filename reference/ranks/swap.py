"""Two ranks swap tensors, and neither waits for the other to begin.

| way                             | steps            | with NCCL                            |
|---------------------------------|------------------|--------------------------------------|
| both in one `batch_isend_irecv` | 1                | the same                             |
| `isend`, `recv`, `wait`         | 1                | may hang: it runs calls in order     |
| the lower rank sends first      | 2                | the same                             |
| both `send`, then both `recv`   | none: a deadlock | the same                             |
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def swap(x: Tensor, partner: int, group: ProcessGroup) -> Tensor:
    """What `partner` holds, while it gets `x`.

    Args:
        x: contiguous, the same shape and dtype on both. It stays as it is.
        partner: group rank of the other one, whose partner is this rank; this rank itself where it has nobody.
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
