"""context_parallel.looks_healthy: Training looks healthy.

rankwise check context_parallel.looks_healthy
rankwise hint context_parallel.looks_healthy

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.exchange import exchange
from reference.context_parallel.plain import attend, attend_backward, merge


def train(
    x: Tensor,
    target: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    steps: int,
    rate: float,
    group: ProcessGroup,
) -> list[float]:
    """Training looks healthy.

    x + attention(x), in training with a causal ring. This is what is known of
    it:

        a. on one rank, it gives the model of one process
        b. on n ranks, the outputs of attention are those of one process, in the
           first step
        c. on n ranks, the loss falls
        d. on n ranks, the weights are the same on every rank after each step
        e. rank 0 finds the right gradient for its queries; other ranks do not

    Three of these say nothing of what is wrong. One says in which half of the
    program to look, and one, with the mask in mind, what rank 0 does not need
    there that the others do. Find the mistake, and mend it. After each step the
    weights must be those of one process.

    Given are `attend(query, key, value, seen)`, which returns an output and its
    logsumexps, and `merge(out, lse, other, other_lse)`;
    `attend_backward(gradient, query, key, value, out, lse, seen)`, one block's
    part of the gradients of query, key and value, by the output and the
    logsumexps of all blocks together; and
    `exchange(outgoing, target, incoming, source, group)`. They are right.

    Args:
        x: [B, S/n, D], this rank's slice of the sequence.
        target: like `x`, what should come out.
        query, key, value: [D, D], the same on every rank. They are updated in
            place.
        steps: how many.
        rate: of learning.
        group: n ranks. Any n.

    Returns: the loss before each step, a float each: the squared error, summed
    over features, the mean over all tokens.

    Budget: in each step keys and values sent n-1 times in forward and n-1 times
    in backward, their gradients n times, and one all-reduce.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)

    def pass_on(x):
        if n == 1:
            return x
        received = torch.empty_like(x)
        exchange(x, (rank + 1) % n, received, (rank - 1) % n, group)
        return received

    def seen(step):
        keys = (rank - step) % n * x.shape[1] + torch.arange(x.shape[1])
        return (rank * x.shape[1] + torch.arange(x.shape[1]))[:, None] >= keys

    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            block = torch.stack([key, value])
            out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
            for step in range(n):
                out, lse = merge(out, lse, *attend(query, *block, seen(step)))
                if step < n - 1:
                    block = pass_on(block)
            ctx.save_for_backward(query, key, value, out, lse)
            return out

        @staticmethod
        def backward(ctx, gradient):
            query, key, value, out, lse = ctx.saved_tensors
            of_query = torch.zeros_like(query)
            of_block = torch.zeros_like(torch.stack([key, value]))
            for step in range(n):
                more, *of_these = attend_backward(gradient, query, key, value, out, lse, seen(step))
                of_query, of_block = of_query + more, of_block + torch.stack(of_these)
                of_block = pass_on(of_block)
            return of_query, *of_block

    weights, losses = [query, key, value], []
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        out = Ring.apply(*((x @ weight.T)[:, None] for weight in weights))
        loss = (x + out[:, 0] - target).square().sum() / (n * x.shape[0] * x.shape[1])
        loss.backward()
        parts = torch.cat([*(weight.grad.flatten() for weight in weights), loss.detach().view(1)])
        dist.all_reduce(parts, group=group)
        losses.append(parts[-1].item())
        with torch.no_grad():
            for weight, gradient in zip(weights, parts[:-1].chunk(3)):
                weight -= rate * gradient.view_as(weight)
                weight.grad = None
    return losses
