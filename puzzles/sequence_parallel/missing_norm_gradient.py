"""sequence_parallel.missing_norm_gradient: The missing gradient.

rankwise check sequence_parallel.missing_norm_gradient
rankwise hint sequence_parallel.missing_norm_gradient

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.sequence_parallel.plain import gather, scatter


def train(
    x: Tensor,
    target: Tensor,
    norm: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor,
    steps: int,
    rate: float,
    group: ProcessGroup,
) -> list[float]:
    """The missing gradient.

    A block of a transformer, in training with sequence parallelism: x +
    down(tanh(up(RMSNorm(x)))) + bias. Norm, residual and bias have a slice of
    the tokens on each rank, `up` is split by columns and `down` by rows. It
    runs, nothing complains, and the loss falls. But train the same model on two
    ranks and on four, and you get two models, and neither is that of one
    process.

    The pair of operations is right, and so is the loss. Check the program as it
    is, read what differs first and where, then mend it. Of each weight, ask:
    does this rank have all of it, and has it seen all tokens?

    Given are `gather(x, group)`, [B, S/n, D] -> [B, S, D], and
    `scatter(x, group)`, [B, S, D] -> [B, S/n, D], which adds up what all ranks
    have made: each is the backward of the other.

    Args:
        x: [B, S/n, D], this rank's tokens.
        target: like `x`, what should come out.
        norm: [D], the weight of the norm, the same on every rank. All four
            weights are updated in place.
        up: [F/n, D], this rank's rows.
        down: [D, F/n], this rank's columns.
        bias: [D], the same on every rank.
        steps: how many.
        rate: of learning.
        group: n ranks. Any n.

    Returns: the loss before each step, a float each: the squared error, summed
    over features, the mean over all tokens.

    Budget: in each step the two operations there and back, an all-reduce for
    the loss, and one for what is missing.
    """
    weights, losses = [norm, up, down, bias], []
    everybodys_tokens = dist.get_world_size(group) * x.shape[0] * x.shape[1]
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        tokens = gather(torch.nn.functional.rms_norm(x, norm.shape, norm), group)
        y = x + scatter(torch.tanh(tokens @ up.T) @ down.T, group) + bias
        loss = (y - target).square().sum() / everybodys_tokens
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                weight -= rate * weight.grad
                weight.grad = None
        total = loss.detach()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return losses
