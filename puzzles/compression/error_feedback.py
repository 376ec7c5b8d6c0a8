"""compression.error_feedback: Error feedback.

rankwise check compression.error_feedback
rankwise hint compression.error_feedback

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.compression.plain_memory import top_k


def sums_with_feedback(
    gradients: Sequence[Tensor], residual: Tensor, k: int, group: ProcessGroup
) -> list[Tensor]:
    """Error feedback.

    Of a gradient of N elements each rank sends k, and drops all others.
    Training then stops far from where it would have gone: an element that is
    small in every step never moves at all.

    So let a rank remember what it did not send, its residual, and add that to
    the next gradient before it chooses what to send. Nothing is lost then, it
    only comes later: all that was sent, and all that is left, are together all
    gradients.

    Given is `top_k(x, k)`: a new tensor, `x` with zeros in all places but those
    of its k largest magnitudes.

    Args:
        gradients: [N] of this rank, one for each step, float64.
        residual: [N] of this rank: what it did not send before the first of
            them. Updated in place: afterwards what it has not sent at all.
        k: how many elements a rank sends in a step.
        group: n ranks. Any n.

    Returns: for each step a tensor [N], the sum over ranks of what they have
    sent.

    Budget: one all-reduce in each step. (It still sends the zeros: what it
    takes to leave these out is another puzzle.)
    """
    raise NotImplementedError("not solved yet")
