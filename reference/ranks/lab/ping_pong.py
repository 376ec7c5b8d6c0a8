"""How fast is a link? Send a message there and back, and look at a clock of one's own.

| measured            | formula                | says              |
|---------------------|------------------------|-------------------|
| round trip, b bytes | 2 (α + b/β)            |                   |
| one way, b bytes    | half of it             | α + b/β           |
| two sizes           | Δ bytes / Δ one-way    | β, then α         |

Clocks of two ranks can't be compared, so one rank measures both ways. A send alone measures nothing: it may return as
soon as the message is in flight. The median forgives a few round trips in which something else happened.

`networks.estimate.alpha_beta` draws the line through more than two sizes.
"""

import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def ping_pong(
    small: int, large: int, rounds: int, clock: Callable[[], float], group: ProcessGroup
) -> tuple[float, float] | None:
    """Measure the link between ranks 0 and 1 of `group`.

    Args:
        small: bytes of the small messages.
        large: bytes of the large ones.
        rounds: how many round trips to time with each size, after one that warms up.
        clock: seconds, such as `time.perf_counter`.
        group: at least two ranks; those beyond the second do nothing.

    Returns: (α in seconds, β in bytes per second) on rank 0, None on all others.
    """
    rank = dist.get_rank(group)
    if rank > 1:
        return None
    quick, slow = one_way(small, rounds, clock, group), one_way(large, rounds, clock, group)
    if rank == 1:
        return None
    beta = (large - small) / (slow - quick)
    return quick - small / beta, beta


def one_way(size: int, rounds: int, clock: Callable[[], float], group: ProcessGroup) -> float:
    """Seconds that a message of `size` bytes takes between ranks 0 and 1: half of the median round trip.

    Call it on these two ranks; other arguments as for `ping_pong`.
    """
    message = torch.zeros(size, dtype=torch.uint8)
    trips = []
    for _ in range(1 + rounds):
        begin = clock()
        if dist.get_rank(group) == 0:
            dist.send(message, group=group, group_dst=1)
            dist.recv(message, group=group, group_src=1)
        else:
            dist.recv(message, group=group, group_src=0)
            dist.send(message, group=group, group_dst=0)
        trips.append(clock() - begin)
    return statistics.median(trips[1:]) / 2
