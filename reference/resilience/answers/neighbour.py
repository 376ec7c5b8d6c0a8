"""New ranks get back what the dead ones had, from the neighbours that kept it (Gemini: Wang et al. 2023)."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def take_over(state: Tensor, copy: Tensor, lost: list[int], node: int, group: ProcessGroup) -> bool:
    """Fill the state and the copy of ranks that are new. Returns False, on all ranks, where a state is lost.

    Args:
        state: of this rank, [3, N].
        copy: of the state of the rank `node` before it, [3, N].
        lost: ranks that are new, and have neither yet.
        node: ranks of a node. The ranks of the next node keep the copies.
        group: n ranks.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    holder, owner = (rank + node) % n, (rank - node) % n
    if any((each + node) % n in lost for each in lost):
        return False
    messages = []
    if owner in lost:  # its state comes first, then what it keeps: these two may go to one and the same rank
        messages.append(dist.P2POp(dist.isend, copy, group=group, group_peer=owner))
    if holder in lost:
        messages.append(dist.P2POp(dist.isend, state, group=group, group_peer=holder))
    if rank in lost:
        messages.append(dist.P2POp(dist.irecv, state, group=group, group_peer=holder))
        messages.append(dist.P2POp(dist.irecv, copy, group=group, group_peer=owner))
    for request in dist.batch_isend_irecv(messages) if messages else ():
        request.wait()
    return True
