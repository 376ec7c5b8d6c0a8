"""planning.goodput: The part of the time that is useful.

rankwise check planning.goodput
rankwise hint planning.goodput

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def useful_part(
    gpu_mtbf: float, gpus: int, interval: float, checkpoint: float, down: float
) -> float:
    """The part of the time that is useful.

    n GPUs train together. Each fails at random, once in `gpu_mtbf` seconds in
    the mean, independently of the others, and when one fails, all stop. The
    time to the next failure is exponentially distributed: how long ago the last
    one was, says nothing about it.

    After every `interval` seconds of training they stop for `checkpoint`
    seconds, to write what they have. A failure undoes what was done since the
    last checkpoint was complete, be it in training or while one is written.
    Then `down` seconds pass until training resumes; if a GPU fails meanwhile,
    they begin anew. Which part of a long training's time is useful: training
    that no failure undoes? At 131,072 GPUs the envelope is far off, so count
    exactly.

    Args:
        gpu_mtbf: mean time between failures of one GPU, in seconds.
        gpus: n, at least 1.
        interval: seconds of training between two checkpoints.
        checkpoint: seconds for which training stops to write one.
        down: seconds from a failure until training resumes.

    Returns: the goodput, above 0 and below 1.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
