"""Copies in memory and saves behind training: each level by the failures that need it (Vaidya 1995)."""

from math import sqrt


def best_intervals(
    between: float, survived: float, copy: float, stall: float, write: float, down: float
) -> tuple[float, float, float]:
    """Seconds between copies, seconds between saves, and the part of the time that is lost.

    Args:
        between: mean time between failures of all GPUs, in seconds.
        survived: the part of failures after which a copy in memory is left, above 0 and below 1.
        copy: seconds for which training stops to send a copy to memory elsewhere.
        stall: seconds for which training stops at the begin of a save.
        write: seconds from then until the save is on disk.
        down: seconds from a failure until training resumes.
    """
    copies = sqrt(2 * copy * between / survived)
    saves = max(sqrt(2 * stall * between / (1 - survived)), write)
    redone = survived * copies / 2 + (1 - survived) * (saves / 2 + write)
    return copies, saves, copy / copies + stall / saves + (redone + down) / between
