"""A forward and a backward in one, written out: the messages of each hide behind the work of the other.

Where ranks share layers, by experts or by tensors, every piece of work ends in a message, and what comes next waits for
it. A micro-batch that goes forward and another one that comes back know nothing of each other: while the
message of the one is in flight, the other computes. That is why DualPipe pairs them on each rank.

    compute     F0    B0    F1    B1    F2    B2
    network        F0    B0    F1    B1    F2    B2

| k pieces each, of times F and B, a message m of at most both | time             |
|---------------------------------------------------------------|------------------|
| one after the other                                           | k (F + B + 2 m)  |
| in turn                                                       | k (F + B) + m    |

DeepSeek-AI 2024, "DeepSeek-V3 technical report", sec. 3.2.1, fig. 4.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Piece = Callable[[Tensor], Tensor]
"""A part of a forward or a backward, from a tensor to one of the same shape. It takes its time."""


def overlapped_pair(
    forward: Sequence[Piece], backward: Sequence[Piece], x: Tensor, gradient: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Take one micro-batch forward and another one backward, in turn; each piece ends in an all-to-all.

    Args:
        forward: pieces for x.
        backward: as many for the gradient.
        x, gradient: [n, D]; of what a piece gives, row i goes to rank i.
        group: n ranks.

    Returns:
        x and gradient after the last piece and its all-to-all.
    """
    on_its_way = None
    for forward_piece, backward_piece in zip(forward, backward, strict=True):
        x, request = begin_to_exchange(forward_piece(x), group)
        if on_its_way:
            on_its_way.wait()
        gradient, on_its_way = begin_to_exchange(backward_piece(gradient), group)
        request.wait()
    if on_its_way:
        on_its_way.wait()
    return x, gradient


def begin_to_exchange(x: Tensor, group: ProcessGroup) -> tuple[Tensor, dist.Work]:
    """What comes of an all-to-all, when the wait for the request returns."""
    received = torch.empty_like(x)
    return received, dist.all_to_all_single(received, x, group=group, async_op=True)
