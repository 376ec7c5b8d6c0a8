"""Numbers about the whole batch: sums and counts add up over ranks, means do not.

The mean of n means is the mean only where all ranks have counted equally many. With 3 and 1 tokens, accuracies of 1/3
and 1/1 make 2/4, not 2/3. So each rank keeps a sum and a count, both travel, and the division comes last. All metrics
of a report fit into one message of 16 bytes for each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.dtypes import accumulator
from reference.models.gpt import IGNORED


@dataclass(frozen=True)
class Average:
    """A sum and how many it has summed: [2] in float64, where integers are exact up to 2^53."""

    sum_and_count: Tensor

    @classmethod
    def of(cls, values: Tensor, counted: Tensor | None = None) -> Self:
        """The average of `values`, of any shape and dtype; of those where `counted`, a mask of that shape, is true."""
        values = values.detach() if counted is None else values.detach().masked_fill(~counted, 0)
        total = values.sum(dtype=torch.float64)
        count = torch.full_like(total, values.numel()) if counted is None else counted.sum(dtype=torch.float64)
        return cls(torch.stack([total, count]))

    def __add__(self, other: "Average") -> "Average":
        """Of both batches together."""
        return Average(self.sum_and_count + other.sum_and_count)


def over_ranks(averages: Mapping[str, Average], group: ProcessGroup) -> dict[str, float]:
    """What the averages are over everything that the ranks of `group` have seen, in one all-reduce.

    Args:
        averages: by name; the same names in the same order on every rank.
        group: n ranks, which all call this; also those that have seen nothing.

    Returns:
        The means by name, the same on every rank. NaN where no rank has seen anything.
    """
    if not averages:
        return {}
    totals = torch.stack([average.sum_and_count for average in averages.values()])
    dist.all_reduce(totals, group=group)
    means = [total / count if count else math.nan for total, count in totals.tolist()]
    return dict(zip(averages, means, strict=True))


def token_losses(logits: Tensor, targets: Tensor) -> Average:
    """Nats per token.

    Args:
        logits: [..., V].
        targets: [...], of integers; those that are `IGNORED` count nothing.
    """
    wide = logits.detach().to(accumulator(logits.dtype))
    losses = F.cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return Average.of(losses.view_as(targets), targets != IGNORED)


def hits(logits: Tensor, targets: Tensor) -> Average:
    """How often the most likely token is the right one. Arguments as for `token_losses`."""
    return Average.of(logits.argmax(-1) == targets, targets != IGNORED)


def accuracy(logits: Tensor, targets: Tensor, group: ProcessGroup) -> float:
    """The share of all ranks' tokens for which the most likely one is right; NaN if there are none.

    Args:
        logits: [T, V], this rank's. T may differ from rank to rank, and be 0.
        targets: [T]; those that are -100 are not to be predicted, and count nothing.
        group: n ranks, which all call this.
    """
    return over_ranks({"accuracy": hits(logits, targets)}, group)["accuracy"]


def perplexity(nats_per_token: float) -> float:
    """Among how many equally likely tokens the model would be as unsure: exp of the mean loss of all, not a mean."""
    return math.exp(nats_per_token)
