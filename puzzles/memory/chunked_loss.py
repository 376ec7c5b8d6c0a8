"""memory.chunked_loss: A loss without its logits.

rankwise check memory.chunked_loss
rankwise hint memory.chunked_loss

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def chunked_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    global_tokens: int,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A loss without its logits.

    The head of a language model makes a logit for each token and each word:
    `hidden @ weight.T`, [T, V]. That is the largest tensor of a model with a
    large vocabulary; `cross_entropy` keeps another one like it, and backward
    makes a third. Never hold more of them than those of `chunk` tokens.

    The loss of a token is logsumexp(its logits) minus the logit of its target.
    With respect to the logits, its gradient is softmax(logits), with 1
    subtracted at the target. The loss is the sum over all tokens that count,
    divided by `global_tokens`, and so are the gradients. A target of -100 is
    padding: it adds nothing to the loss, and its hidden state has a gradient of
    zero.

    Logits may be as large as thousands: `exp` of those is inf.

    Args:
        hidden: what the head is given, float64 [T, D].
        weight: of the head, [V, D].
        targets: int64 [T].
        global_tokens: how many tokens count, in the whole step.
        chunk: how many tokens may have logits at once. T may leave a last chunk
            that is smaller.

    Returns: three new tensors without history: the loss, a scalar, and its
    gradients with respect to hidden and weight.

    Budget: memory for the two gradients, and for the logits of a chunk three
    times.
    """
    raise NotImplementedError("not solved yet")
