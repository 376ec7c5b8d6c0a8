"""What is wrong without dying, in its smallest forms: a vote, a checksum of a sum, a spike."""

from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import median

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def outvoted(values: Sequence[Hashable]) -> tuple[list[int], bool]:
    """Of values that should all be equal: which are wrong.

    Returns:
        The places of those that most do not share, and True. Where no value is that of more than half, the places of
        all, and False: one of them is wrong at least, and it is not known which.
    """
    usual, count = Counter(values).most_common(1)[0]
    if 2 * count > len(values):
        return [place for place, value in enumerate(values) if value != usual], True
    return list(range(len(values))), False


def sum_with_checksum(x: Tensor, group: ProcessGroup, tolerance: float) -> bool:
    """Sum `x` over `group`, in place, and say whether that went well: the sum of the sum is the sum of the sums.

    Huang & Abraham 1984, "Algorithm-based fault tolerance for matrix operations".

    Args:
        x: the same shape and dtype on every rank.
        group: n ranks.
        tolerance: what rounding may change.
    """
    checksum = x.double().sum()
    dist.all_reduce(checksum, group=group)
    dist.all_reduce(x, group=group)
    return bool((x.double().sum() - checksum).abs() <= tolerance)  # False for NaN, too


def is_spike(loss: float, last: Sequence[float], deviations: float) -> bool:
    """Whether a loss is out of line with the last ones, by their median and their median distance from it."""
    middle = median(last)
    spread = 1.4826 * median(abs(each - middle) for each in last)  # of normal noise, its standard deviation
    return not loss <= middle + deviations * spread
