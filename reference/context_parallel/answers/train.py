"""Attention in training over a ring: what backward reads must be the block that forward read at that step.

Keys and values travel in backward as they did in forward, and each step takes the gradients between this rank's queries
and the block that is here *now*. A backward that reads the keys and values that it began with, at each step, is wrong
in silence: the forward is right, so is the loss of each step for its weights, and the loss falls. Only gradients tell.
(huggingface/diffusers#14265.)
"""

from typing import Any

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
    """Train x + attention(x) by gradient descent, in place on its three weights.

    Args:
        x, target: [B, S / n, D], this rank's slice of the sequence.
        query, key, value: [D, D], the same on every rank.
        steps: how many.
        rate: of learning.
        group: n ranks.

    Returns:
        The loss before each step: the squared error, summed over features, as a mean over all tokens.
    """
    tokens = dist.get_world_size(group) * x.shape[0] * x.shape[1]
    weights, losses = [query, key, value], []
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        out = _Ring.apply(*((x @ weight.T)[:, None] for weight in weights), group)
        loss = (x + out[:, 0] - target).square().sum() / tokens
        loss.backward()
        parts = torch.cat([*(weight.grad.flatten() for weight in weights), loss.detach().view(1)])
        dist.all_reduce(parts, group=group)
        losses.append(parts[-1].item())
        with torch.no_grad():
            for weight, gradient in zip(weights, parts[:-1].chunk(3), strict=True):
                weight -= rate * gradient.view_as(weight)
                weight.grad = None
    return losses


class _Ring(torch.autograd.Function):
    """Causal attention of [B, H, S / n, d] over a ring."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: ProcessGroup) -> Tensor:
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        block = torch.stack([key, value])
        out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
        for step in range(n):
            out, lse = merge(out, lse, *attend(query, *block, _seen(rank, (rank - step) % n, query)))
            if step < n - 1:
                block = _pass_on(block, group)
        ctx.group = group
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, lse = ctx.saved_tensors
        group = ctx.group
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        block, of_query = torch.stack([key, value]), torch.zeros_like(query)
        of_block = torch.zeros_like(block)
        for step in range(n):
            seen = _seen(rank, (rank - step) % n, query)
            more, *of_these = attend_backward(gradient, query, *block, out, lse, seen)
            of_query, of_block = of_query + more, of_block + torch.stack(of_these)
            of_block = _pass_on(of_block, group)  # n times: then each is where it belongs
            if step < n - 1:
                block = _pass_on(block, group)
        return of_query, *of_block, None


def _seen(rank: int, other: int, query: Tensor) -> Tensor:
    """Which tokens of this rank see which of another one."""
    place = torch.arange(query.shape[2])
    return (rank * len(place) + place)[:, None] >= other * len(place) + place


def _pass_on(x: Tensor, group: ProcessGroup) -> Tensor:
    """Give it to the next rank, and get that of the one before."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return x
    received = torch.empty_like(x)
    exchange(x, (rank + 1) % n, received, (rank - 1) % n, group)
    return received
