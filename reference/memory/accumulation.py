"""Gradient accumulation: a large batch on a small device, one micro-batch after another.

| K micro-batches | activations | gradients | arithmetic          | all-reduces                |
|-----------------|-------------|-----------|---------------------|----------------------------|
| at once (K = 1) | whole batch | once      |                     | one                        |
| one by one      | a K-th      | once      | the same, in pieces | one, after the last piece  |

Backward *adds* to `.grad`, so all there is to do is not to clear it in between. And one rule makes the sum right: each
micro-batch divides the sum of its token losses by the number of tokens of the *whole* batch. The mean of K means is
something else as soon as micro-batches differ in length: tokens of short ones would weigh more. Popular trainers did
just that until October 2024 ("Gradient accumulation yields worse results than the equivalent batch size",
huggingface/trl issue 2175).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.models import token_loss

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and their targets, [B, S] each."""


def micro_batches(tokens: Tensor, targets: Tensor, count: int) -> list[MicroBatch]:
    """Cut a batch into `count` micro-batches whose sizes differ by one window at most, without a copy.

    Args:
        tokens: [B, S].
        targets: [B, S], the token that follows each.
        count: K, from 1 to B.

    Raises:
        BadInput: if there are fewer windows than micro-batches, or not as many targets as tokens.
    """
    windows = len(tokens)
    if tokens.shape != targets.shape:
        raise BadInput(f"each token has a target: {tuple(tokens.shape)} tokens, {tuple(targets.shape)} targets")
    if not 1 <= count <= windows:
        raise BadInput(f"a batch of {windows} windows cannot be cut into {count} micro-batches; 1 to {windows} can be")
    return list(zip(tokens.tensor_split(count), targets.tensor_split(count), strict=True))


def accumulate(model: nn.Module, batches: Sequence[MicroBatch], global_tokens: int) -> Tensor:
    """Add the gradients of all micro-batches up in `.grad`, and return the loss of all of them.

    Args:
        model: from tokens [B, S] to logits [B, S, V].
        batches: micro-batches of any sizes.
        global_tokens: how many tokens the whole step sees: of all micro-batches, and of all ranks.

    Returns:
        A scalar, in nats: these micro-batches' part of the loss of the step.

    Raises:
        BadInput: if there is no micro-batch or no token.
    """
    if not batches or global_tokens < 1:
        raise BadInput(f"a step has 1 micro-batch and 1 token at least, not {len(batches)} and {global_tokens}")
    loss_of_all = torch.zeros((), device=batches[0][0].device)
    for tokens, targets in batches:
        loss = token_loss(model(tokens), targets, global_tokens)
        loss.backward()
        loss_of_all = loss_of_all + loss.detach()
    return loss_of_all
