"""Goodput of n GPUs that fail at random, exactly: a failure may come in training, in a checkpoint, and in a restart.

To get through L seconds without a failure takes M (exp(L / M) - 1) seconds of tries in the mean, and exp(L / M) - 1
failures; each of these makes a restart necessary, which has to get through its own seconds in the same way. (Daly 2006)
"""

from math import exp


def useful_part(gpu_mtbf: float, gpus: int, interval: float, checkpoint: float, down: float) -> float:
    """The part of a long training's time that brings it forward, from 0 to 1.

    Args:
        gpu_mtbf: mean time between failures of one GPU, in seconds.
        gpus: n. When one fails, all stop.
        interval: seconds of training between two checkpoints.
        checkpoint: seconds for which training stops to write one.
        down: seconds from a failure until training resumes.
    """
    between = gpu_mtbf / gpus
    failures = exp((interval + checkpoint) / between) - 1
    return interval / (between * failures * exp(down / between))
