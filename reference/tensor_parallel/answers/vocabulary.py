"""The two ends of a language model whose vocabulary is split, with forward and backward written out.

Each rank has some rows of the table [V, D], so it finds some of the tokens, and computes some of the logits. What it
sends is a matter of tokens, never of the vocabulary; t ranks, N tokens:

| function            | sent                                              | what is not sent                           |
|---------------------|---------------------------------------------------|--------------------------------------------|
| `look_up`           | all-reduce of N D: what was found                 | its gradient: each rank needs its own rows |
| `loss_and_gradient` | all-reduces of N (a maximum) and 2 N (two sums)   | logits; backward sends nothing at all      |
| `tied_gradient`     | all-reduce of N D: the gradient of the head input | gradients of the table                     |

`vocabulary.py` does the same for autograd, with what a real model needs besides: smoothing, ignored tokens, padding.

Shoeybi et al. 2019, "Megatron-LM", sec. 3; the tied table: Press & Wolf 2017, "Using the output embedding to improve
language models".
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def look_up(tokens: Tensor, table: Tensor, upstream: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Rows of a table of which this rank has some, and the gradient of those it has.

    Args:
        tokens: [N] of integers below V, the same on every rank.
        table: [V / t, D]: rows [rank · V/t, (rank + 1) · V/t) of the whole.
        upstream: [N, D], gradient of the loss with respect to what is found, the same on every rank.
        group: t ranks.

    Returns:
        What the whole table gives, [N, D], the same on every rank; the gradient of this rank's rows, [V / t, D].
    """
    row, mine = own_rows(tokens, len(table), group)
    found = table[row] * mine.unsqueeze(-1)
    dist.all_reduce(found, group=group)
    gradient = torch.zeros_like(table).index_add_(0, row, upstream * mine.unsqueeze(-1))
    return found, gradient


def loss_and_gradient(logits: Tensor, targets: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each token, and the gradient of its logits, of which this rank has some.

    Args:
        logits: [N, V / t]: columns [rank · V/t, (rank + 1) · V/t) of the whole.
        targets: [N] of integers below V, the same on every rank.
        group: t ranks.

    Returns:
        The losses [N], in nats, the same on every rank; the gradient of their sum with respect to this rank's logits,
        [N, V / t].
    """
    largest = logits.amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    column, mine = own_rows(targets, logits.shape[-1], group)
    column, mine = column.unsqueeze(-1), mine.to(logits.dtype)
    exponentials = (logits - largest.unsqueeze(-1)).exp_()
    of_target = (logits.gather(-1, column).squeeze(-1) - largest) * mine
    sums = torch.stack([exponentials.sum(-1), of_target])
    dist.all_reduce(sums, group=group)
    partition, of_target = sums
    gradient = exponentials.div_(partition.unsqueeze(-1)).scatter_add_(-1, column, -mine.unsqueeze(-1))
    return partition.log() - of_target, gradient


def tied_gradient(
    tokens: Tensor,
    table: Tensor,
    y: Tensor,
    upstream: Tensor,
    backward: Callable[[Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """The gradient of a table that is used twice: to look tokens up, and to compute logits from what became of them.

    Args:
        tokens: [N] of integers below V, the same on every rank.
        table: [V / t, D]: this rank's rows.
        y: [N, D], what the layers between have made of the rows; this rank's logits are y tableᵀ.
        upstream: [N, V / t], gradient of the loss with respect to this rank's logits.
        backward: through the layers between: gradient of y -> gradient of the rows that were looked up.
        group: t ranks.

    Returns:
        [V / t, D]: the gradient of this rank's rows, of both uses.
    """
    of_y = upstream @ table
    dist.all_reduce(of_y, group=group)
    row, mine = own_rows(tokens, len(table), group)
    gradient = upstream.T @ y
    return gradient.index_add_(0, row, backward(of_y) * mine.unsqueeze(-1))


def own_rows(tokens: Tensor, rows: int, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Of each token, its row among this rank's (0 where it has none), and whether this rank has it."""
    here = tokens - dist.get_rank(group) * rows
    mine = (here >= 0) & (here < rows)
    return here.where(mine, 0), mine
