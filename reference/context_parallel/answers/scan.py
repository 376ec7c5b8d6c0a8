"""An exclusive scan over ranks in ⌈log₂ n⌉ steps: the state before each rank, for linear attention with decay.

This is `tree` of `reference.context_parallel.scan` with torch's own messages. A rank keeps both: what the ranks up to
it come to, which it sends, and what those before it come to, which it returns.

Hillis and Steele 1986, "Data parallel algorithms".
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def state_before(decay: Tensor, state: Tensor, backwards: bool, group: ProcessGroup) -> Tensor:
    """What the tokens before this rank come to; backwards, what those after it do.

    Args:
        decay: [H], by which this rank multiplies a state, in each head.
        state: [H, d, e], what it then adds.
        backwards: whether the scan runs from the last rank to the first.
        group: n ranks.

    Returns:
        [H, d, e]; zeros where nothing comes before.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    place, toward = (n - 1 - rank, -1) if backwards else (rank, 1)
    kept = decay[:, None, None]
    before, before_kept = torch.zeros_like(state), torch.ones_like(kept)
    distance = 1
    while distance < n:
        outgoing = torch.cat([kept.flatten(), state.flatten()])
        incoming, messages = torch.empty_like(outgoing), []
        if place + distance < n:
            messages.append(dist.P2POp(dist.isend, outgoing, group=group, group_peer=rank + toward * distance))
        if place >= distance:
            messages.append(dist.P2POp(dist.irecv, incoming, group=group, group_peer=rank - toward * distance))
        for request in dist.batch_isend_irecv(messages) if messages else ():
            request.wait()
        if place >= distance:
            other_kept, other = incoming[: len(decay)].view_as(kept), incoming[len(decay) :].view_as(state)
            before, before_kept = before_kept * other + before, before_kept * other_kept
            state, kept = kept * other + state, kept * other_kept
        distance *= 2
    return before
