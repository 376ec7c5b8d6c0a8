"""The rank that is late by its own work, where others are late because they have waited for it."""

from collections.abc import Mapping, Sequence
from statistics import median_low


def name_the_straggler(
    came: Sequence[Mapping[int, float]], left: Sequence[Mapping[int, float]]
) -> tuple[int, int, float]:
    """Which rank works longer than the others.

    Args:
        came: of each call, in order: when each of its ranks came to it, in seconds.
        left: the same, when each of them left it.

    Returns:
        The rank with the largest excess in all calls together, the call where it is largest, and the excess in all, in
        seconds. A rank's excess at a call is its own work since its call before, less the median of all in the call.
    """
    before: dict[int, float] = {}
    total: dict[int, float] = {}
    worst: dict[int, tuple[float, int]] = {}
    for call, (came_to, left_it) in enumerate(zip(came, left, strict=True)):
        work = {rank: moment - before.get(rank, 0.0) for rank, moment in came_to.items()}
        usual = median_low(work.values())
        for rank, seconds in work.items():
            excess = max(0.0, seconds - usual)
            total[rank] = total.get(rank, 0.0) + excess
            worst[rank] = max(worst.get(rank, (0.0, 0)), (excess, -call))
        before.update(left_it)
    rank = min(total, key=lambda each: (-total[each], each))
    return rank, -worst[rank][1], total[rank]
