"""context_parallel.ring_forward: Attention around a ring.

rankwise check context_parallel.ring_forward
rankwise hint context_parallel.ring_forward

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.context_parallel.plain import merge

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def ring_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    attend: Attend,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Attention around a ring.

    A long sequence is shared out: each rank has some tokens, with their
    queries, keys and values. Every query has to meet the keys of all ranks. To
    gather these takes memory for the whole sequence. So let them pass by:
    queries stay, and the block of a rank's keys and values travels around the
    ring, from each rank to the next. What a block gives is merged with what the
    queries have got so far.

    A block that is looked at can be sent at the same time: attention only reads
    it. So post the send and the receive, look, and then wait.

    Which token stands where is not your concern. `seen` says of each rank which
    of its keys your queries see: it may be a causal mask over contiguous tokens
    or over others, and there may be padding, which sees nothing. Use the part
    of it that belongs to the block that you hold.

    Given is `merge(out, lse, other, other_lse)`, which returns out and lse of
    two parts together. A part that saw nothing has out = 0 and lse = -inf.

    Args:
        query: [B, H, Q, d], this rank's.
        key: [B, K, Q, d], this rank's. H / K heads of queries share one of
            these.
        value: [B, K, Q, d], this rank's.
        seen: [n, Q, Q] of bool: seen[j] says which of this rank's queries see
            which keys of rank j.
        attend: `attend(query, key, value, seen[j])` is out and lse of attention
            to one block. It takes its time.
        group: n ranks. Any n.

    Returns: out, [B, H, Q, d], and lse, [B, H, Q], of attention to all ranks'
    keys.

    Budget: each rank sends n-1 blocks, in n-1 steps; memory for three blocks at
    most (two are enough); and on a modelled link the time of n-1 messages or
    attentions, whichever takes longer, and of one more attention.
    """
    raise NotImplementedError("not solved yet")
