"""How often to write a checkpoint: a stop for each against the work that a failure undoes (Young 1974)."""

from math import sqrt


def checkpoint_interval(gpu_mtbf: float, gpus: int, checkpoint: float, down: float) -> tuple[float, float]:
    """Seconds of training between two checkpoints for which the least time is lost, and the part that is lost.

    Args:
        gpu_mtbf: mean time between failures of one GPU, in seconds.
        gpus: n. When one fails, all stop.
        checkpoint: δ, seconds for which training stops to write one.
        down: seconds from a failure until training resumes.
    """
    between = gpu_mtbf / gpus
    interval = sqrt(2 * checkpoint * between)
    return interval, checkpoint / interval + (interval / 2 + down) / between
