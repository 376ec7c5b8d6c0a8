"""The two ends of a language model, split by vocabulary: each rank has some rows of the table, and some of the logits.

The logits are the largest tensor of a training step: tokens times vocabulary, 128,256 numbers for each token of
Llama 3. Here no rank ever has them whole. What the ranks tell each other to get from parts of logits to the loss are a
few numbers for each token: the maximum, then the sum of exponentials and the logit of the target.

    loss = log sum_v exp(z_v - max) + max - z_target

Shoeybi et al. 2019, "Megatron-LM", sec. 3; label smoothing: Szegedy et al. 2016, sec. 7.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.dtypes import accumulator
from reference.errors import BadInput
from reference.models.gpt import IGNORED

from .region import Region


def embedding(tokens: Tensor, table: Tensor, region: Region, vocabulary: int | None = None) -> Tensor:
    """Look tokens up in a table of which each rank has some rows: its owner gives a row, the others zeros.

    Args:
        tokens: [B, S] of integers from 0 to V - 1, the same on every rank.
        table: [V' / t, D]: rows [rank · V'/t, (rank + 1) · V'/t) of the whole.
        region: whose t ranks share the table.
        vocabulary: V; rows from there on are padding, and no token has them. All V' of them by default.

    Returns:
        [B, S, D] as it lies outside of the region.

    Raises:
        BadInput: at what is no token, on a CPU. On a GPU this is not checked, and no rank has its row: it gets zeros.
    """
    require_tokens("token", tokens, vocabulary or len(table) * region.ranks)
    here = tokens - region.rank * len(table)
    mine = (here >= 0) & (here < len(table))
    found = F.embedding(here.where(mine, 0), table)
    return region.reduce_output(found * mine.unsqueeze(-1))


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: ProcessGroup | Communicator,
    vocabulary: int | None = None,
    smoothing: float = 0.0,
    ignored: int = IGNORED,
) -> Tensor:
    """The loss of each token, as `torch.nn.functional.cross_entropy`, from logits of which each rank has some.

    Sends 2 all-reduces, of one and of two numbers for each token (three with smoothing); backward sends nothing.

    Args:
        logits: [N, V' / t], columns [rank · V'/t, (rank + 1) · V'/t) of the whole, in float32 or float64.
        targets: [N] of integers below V, the same on every rank.
        group: the t ranks.
        vocabulary: V; logits from there on are padding, and have no part in it. All V' of them by default.
        smoothing: this part of the target is shared by all tokens of the vocabulary.
        ignored: what a target says whose token does not count: its loss is zero.

    Returns:
        [N], in nats, the same on every rank.

    Raises:
        BadInput: at a target that is no token, on a CPU. On a GPU this is not checked: its logit counts as the largest.
    """
    share = logits.shape[-1]
    first, vocabulary = group.rank() * share, vocabulary or share * group.size()
    require_tokens("target", targets, vocabulary, ignored)
    here = min(max(vocabulary - first, 0), share)  # padding stands after the last token
    settings = over(group), first, here, vocabulary, smoothing, ignored
    return VocabularyParallelCrossEntropy.apply(logits, targets, *settings)


def require_tokens(kind: str, tokens: Tensor, vocabulary: int, *ignored: int) -> None:
    """See whether these are tokens, where that is not waited for: on a CPU.

    Args:
        kind: what they are called.
        tokens: integers of any shape.
        vocabulary: V; tokens are numbers from 0 to V - 1.
        ignored: what they may be besides.

    Raises:
        BadInput: that names the first that is none.
    """
    if tokens.device.type != "cpu":
        return  # the CPU would have to wait for the GPU
    strange = (tokens < 0) | (tokens >= vocabulary)
    for other in ignored:
        strange &= tokens != other
    if strange.any():
        beside = "".join(f", nor the ignored {other}" for other in ignored)
        raise BadInput(f"{kind} {tokens[strange][0]} is not a token of 0 to {vocabulary - 1}{beside}")


class VocabularyParallelCrossEntropy(Function):
    """See `cross_entropy`. What is kept for backward are this rank's probabilities."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        communicator: Communicator,
        first: int,
        here: int,
        vocabulary: int,
        smoothing: float,
        ignored: int,
    ) -> Tensor:
        largest = logits[:, :here].amax(-1) if here else logits.new_full((len(logits),), -math.inf)
        communicator.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = logits[:, :here] - largest.unsqueeze(-1)
        target = targets - first
        mine = (target >= 0) & (target < here)
        target = target.where(mine, 0).unsqueeze(-1)
        of_target = shifted.gather(-1, target).squeeze(-1).where(mine, 0) if here else torch.zeros_like(largest)
        of_all = [shifted.sum(-1)] if smoothing else []
        probabilities = shifted.exp_()
        sums = torch.stack([probabilities.sum(-1), of_target, *of_all])
        communicator.all_reduce(sums)

        partition, of_target, *of_all = sums
        loss = partition.log() - (1 - smoothing) * of_target
        for total in of_all:
            loss -= smoothing / vocabulary * total
        counts = targets != ignored
        ctx.save_for_backward(probabilities.div_(partition.unsqueeze(-1)), target, mine, counts)
        ctx.smoothing, ctx.vocabulary, ctx.padding = smoothing, vocabulary, logits.shape[-1] - here
        return loss.where(counts, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, target, mine, counts = ctx.saved_tensors
        weight = (gradient * counts).unsqueeze(-1)
        of_logits = (probabilities - ctx.smoothing / ctx.vocabulary).mul_(weight)
        if of_logits.shape[-1]:
            of_logits.scatter_add_(-1, target, (ctx.smoothing - 1) * weight * mine.unsqueeze(-1))
        return F.pad(of_logits, (0, ctx.padding)) if ctx.padding else of_logits, *[None] * 7


def token_loss(
    logits: Tensor,
    targets: Tensor,
    global_tokens: int,
    group: ProcessGroup | Communicator,
    vocabulary: int | None = None,
) -> Tensor:
    """`reference.models.token_loss`, from logits of which each rank has some. The same on every rank of `group`.

    Args:
        logits: [B, S, V' / t].
        targets: [B, S].
        global_tokens: how many tokens the whole step sees.
        group, vocabulary: as for `cross_entropy`.

    Returns:
        A scalar, in nats.
    """
    logits = logits.to(accumulator(logits.dtype))
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), group, vocabulary).sum() / global_tokens
