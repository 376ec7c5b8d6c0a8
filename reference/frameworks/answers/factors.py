"""By what mean losses of micro-batches are multiplied, so that a framework makes the mean over all tokens of them."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def factors(counts: Sequence[int], averages: bool, divides: bool, group: ProcessGroup) -> list[float]:
    """A factor for each micro-batch of this rank.

    Args:
        counts: tokens that count, in each of K micro-batches of this rank; it may be 0.
        averages: whether the framework averages gradients over ranks, or sums them.
        divides: whether it divides each loss by K, or not.
        group: n ranks.

    Returns:
        What the mean loss of each micro-batch is multiplied by, such that what the framework makes of all gradients is
        the gradient of the mean over all tokens that count, of all ranks and micro-batches.
    """
    total = torch.tensor(float(sum(counts)), dtype=torch.float64)
    dist.all_reduce(total, group=group)
    undone = (group.size() if averages else 1) * (len(counts) if divides else 1)
    return [count * undone / total.item() for count in counts]
