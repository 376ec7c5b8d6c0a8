"""memory.accumulate: A batch that does not fit.

rankwise check memory.accumulate
rankwise hint memory.accumulate

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.nn as nn
from torch import Tensor

MicroBatch = tuple[Tensor, Tensor]


def accumulate(
    model: nn.Module, batches: Sequence[MicroBatch], global_tokens: int
) -> Tensor:
    """A batch that does not fit.

    The whole batch does not fit into memory: forward keeps something for every
    token until backward. So it comes in micro-batches, of different sizes, and
    you send each of them forward and backward by itself.

    Afterwards every parameter must have in `.grad` exactly what one backward of
    the whole batch would have put there. The loss is the sum of
    `torch.nn.functional.cross_entropy` over all tokens that count, divided by
    `global_tokens`, the number of such tokens in the whole step: in all
    micro-batches, here and on other ranks. Then gradients of micro-batches, and
    of ranks, simply add up.

    A target of -100 is padding: it does not count, and `cross_entropy` leaves
    it out by itself. A micro-batch may hold nothing but padding.

    Args:
        model: from tokens [B, S] to logits [B, S, V]. No parameter has a
            gradient yet.
        batches: micro-batches, pairs of tokens and targets, int64 [B, S] each.
            B differs from pair to pair.
        global_tokens: how many tokens count, in the whole step.

    Returns: these micro-batches' part of the loss, a scalar without history.

    Budget: memory for gradients, and for the activations of the largest
    micro-batch.
    """
    raise NotImplementedError("not solved yet")
