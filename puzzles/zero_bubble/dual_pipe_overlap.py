"""zero_bubble.dual_pipe_overlap: Hide messages behind the other direction.

rankwise check zero_bubble.dual_pipe_overlap
rankwise hint zero_bubble.dual_pipe_overlap

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Piece = Callable[[Tensor], Tensor]


def overlapped_pair(
    forward: Sequence[Piece],
    backward: Sequence[Piece],
    x: Tensor,
    gradient: Tensor,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Hide messages behind the other direction.

    In a large mixture of experts every piece of a layer ends in an all-to-all:
    tokens go to their experts, and come back. A forward alone is a chain: a
    piece, its message, the next piece, its message. So is a backward. In
    DeepSeek-V3 the messages took as long as the work.

    DualPipe gives each rank two micro-batches at a time, one that goes forward
    and one that comes back. They know nothing of each other. While the message
    of the one is in flight, compute a piece of the other.

    `dist.all_to_all_single(received, x, group=group, async_op=True)` returns at
    once, and gives you a request. Row i of x goes to rank i; row i of
    `received` comes from rank i. Until `request.wait()` has returned, no code
    may read or write either of them.

    Args:
        forward: a list of functions: `x = piece(x)`, then an all-to-all of x,
            then the next one. Each takes its time.
        backward: as many for the gradient, each followed by an all-to-all, too.
        x, gradient: [n, D].
        group: n ranks. Any n.

    Returns: two tensors, x and gradient, after the all-to-all that follows
    their last pieces.

    Budget: on a modelled link the time of all pieces and of one message, if a
    message takes no longer than a piece. What must travel, travels once.
    """
    raise NotImplementedError("not solved yet")
