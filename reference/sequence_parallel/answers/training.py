"""A block in training, with its tokens in slices: whose gradients are whole, and whose are parts.

| weight   | on a rank      | what it sees      | gradient on a rank                                              |
|----------|----------------|-------------------|-----------------------------------------------------------------|
| up, down | its columns    | all tokens        | whole, of its columns: no other rank has them                   |
| norm     | all of it      | a slice of tokens | a part: summed over the ranks, it is whole                      |
| bias     | all of it      | a slice of tokens | a part, too: it is added where the residual is                  |

A rank that steps with a part of the gradient gets weights of its own. Nothing fails. The ranks drift apart, and what
is learned depends on how many they are.

Megatron-LM calls this step `allreduce_layernorm_grads`: all of them flat, in one message.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
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
    """Train x + down(tanh(up(RMSNorm(x)))) + bias by gradient descent, in place on its four weights.

    Args:
        x, target: [B, S / t, D], this rank's slice.
        norm, bias: [D], the same on every rank.
        up: [F / t, D]: this rank's rows.
        down: [D, F / t]: this rank's columns.
        steps: how many.
        rate: of learning.
        group: t ranks.

    Returns:
        The loss before each step: the squared error, summed over features, as a mean over all tokens.
    """
    everybodys_tokens = group.size() * x[..., 0].numel()
    weights, losses = [norm, up, down, bias], []
    for weight in weights:
        weight.requires_grad_()
    for _ in range(steps):
        tokens = gather(F.rms_norm(x, norm.shape, norm), group)
        y = x + scatter(torch.tanh(tokens @ up.T) @ down.T, group) + bias
        loss = (y - target).square().sum() / everybodys_tokens
        loss.backward()
        parts = torch.cat([norm.grad, bias.grad, loss.detach().view(1)])
        dist.all_reduce(parts, group=group)
        norm.grad, bias.grad, loss = parts.split([len(norm), len(bias), 1])
        with torch.no_grad():
            for weight in weights:
                weight -= rate * weight.grad
                weight.grad = None
        losses.append(loss.item())
    return losses
