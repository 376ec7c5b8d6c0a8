"""memory.loss_scaler: A scale that finds itself.

rankwise check memory.loss_scaler
rankwise hint memory.loss_scaler

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


def scaled_step(
    masters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    scale: float,
    good_steps: int,
    interval: int,
    learning_rate: float,
    group: ProcessGroup,
) -> tuple[float, int]:
    """A scale that finds itself.

    float16 begins at 6e-8 and ends at 65,504. Gradients are small, so the loss
    is multiplied by a scale before backward: the larger, the fewer gradients
    vanish. But if one of them grows beyond 65,504, it is inf.

    So the scale finds itself. If any gradient is inf or NaN, the step is
    skipped: no weight moves, and the scale is halved. Otherwise the step is
    taken; and after `interval` good steps in a row, the scale is doubled. A
    change of the scale, up or down, begins a new row.

    Each rank has its own slice of the weights and of the gradients. An overflow
    on one rank must count on all ranks: if it skipped alone, its slice would be
    a step behind, and its scale another one, forever.

    Args:
        masters: float32, this rank's slice of the weights; updated in place, by
            -learning_rate times the gradient of the loss itself.
        gradients: float16, of the loss times `scale`; tensors of the same
            shapes.
        scale: the same on every rank.
        good_steps: good steps in a row until now.
        interval: after so many, the scale is doubled.
        learning_rate: what a gradient is multiplied by.
        group: n ranks. Any n.

    Returns: (scale, good_steps) to continue with, a float and an int, the same
    on every rank.

    Budget: one call, of one number. Send a flag and not the overflow itself: no
    message may hold inf or NaN.
    """
    raise NotImplementedError("not solved yet")
