"""A training whose GPUs fail at random, event after event: what `goodput.goodput` says in a formula, imitated.

Each GPU has a clock of its own, which rings after an exponentially distributed time. Nothing here knows that the first
of n clocks rings n times as often, nor what is lost in the mean.
"""

from collections.abc import Iterator

import numpy as np

from reference.planning.goodput import Reliability


def failures(gpus: int, gpu_mtbf: float, random: np.random.Generator) -> Iterator[float]:
    """When some GPU fails, in seconds from the start: one failure after the other, without end."""
    clocks = random.exponential(gpu_mtbf, gpus)
    while True:
        first = clocks.argmin()
        yield float(clocks[first])
        clocks[first] += random.exponential(gpu_mtbf)


def imitate(
    reliability: Reliability, gpus: int, interval: float, checkpoints: int, random: np.random.Generator
) -> dict[str, float]:
    """Seconds that go into each part of a training until so many checkpoints are written.

    Args:
        reliability: its numbers are no columns.
        gpus: n.
        interval: τ, seconds of training between two checkpoints.
        checkpoints: how many intervals the training has.
        random: that draws the failures.

    Returns:
        "useful", "checkpoints", "rework", "detection" and "restarts", as in `Goodput.parts`.
    """
    spent = dict.fromkeys(("useful", "checkpoints", "rework", "detection", "restarts"), 0.0)
    rings = failures(gpus, reliability.gpu_mtbf, random)
    now, failure, down, written = 0.0, next(rings), False, 0
    while written < checkpoints:
        ways = {"detection": reliability.detection, "restarts": reliability.restart} if down else {}
        down = False
        for part, seconds in (ways | {"rework": interval + reliability.checkpoint}).items():
            if failure < now + seconds:
                spent[part] += failure - now
                now, failure, down = failure, next(rings), True
                break
            now += seconds
            spent[part] += seconds
        else:
            spent["rework"] -= interval + reliability.checkpoint  # no failure has undone it
            spent["useful"] += interval
            spent["checkpoints"] += reliability.checkpoint
            written += 1
    return spent
