"""planning.checkpoint_interval: How often to write a checkpoint.

rankwise check planning.checkpoint_interval
rankwise hint planning.checkpoint_interval

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def checkpoint_interval(
    gpu_mtbf: float, gpus: int, checkpoint: float, down: float
) -> tuple[float, float]:
    """How often to write a checkpoint.

    n GPUs train together. Each fails once in `gpu_mtbf` seconds in the mean,
    independently of the others, and when one fails, all stop. After every τ
    seconds of training they also stop for `checkpoint` seconds, to write what
    they have. A failure costs what was trained since the last checkpoint, half
    of τ in the mean, and `down` seconds more, until training resumes. For which
    τ is least time lost?

    Count as one does on an envelope: the seconds that are lost for each second
    of training. That is exact enough as long as few are: no failure during a
    checkpoint, and none while training is down.

    Args:
        gpu_mtbf: mean time between failures of one GPU, in seconds.
        gpus: n, at least 1.
        checkpoint: seconds for which training stops to write one.
        down: seconds from a failure until training resumes: until it is seen,
            and all are back and have loaded.

    Returns: τ in seconds, and the seconds that are lost for each second of
    training at this τ.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
