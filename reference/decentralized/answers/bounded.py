"""Stale-synchronous training on paper: when does each worker take its steps? (Ho et al. 2013)"""

from collections.abc import Sequence


def finish_times(seconds: Sequence[Sequence[int]], bound: int) -> list[int]:
    """When each worker has taken all of its steps.

    Args:
        seconds: of each worker, how long each of its steps takes.
        bound: steps that a worker may be ahead of one that still works.
    """
    ends = [[0] for _ in seconds]  # of each worker, when it has taken 0, 1, ... steps
    for step in range(max(map(len, seconds))):
        needed = max(0, step - bound)
        free = max(of_worker[min(needed, len(of_worker) - 1)] for of_worker in ends)
        for own, of_worker in zip(seconds, ends, strict=True):
            if step < len(own):
                of_worker.append(max(free, of_worker[-1]) + own[step])
    return [of_worker[-1] for of_worker in ends]
