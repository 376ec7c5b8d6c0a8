"""decentralized.still_the_same: When islands are still data parallelism.

rankwise check decentralized.still_the_same
rankwise hint decentralized.still_the_same

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def same_as_data_parallelism(
    islands: int,
    inner_steps: int,
    outer_rate: float,
    outer_momentum: float,
    inner: str,
    clips: bool,
) -> bool:
    """When islands are still data parallelism.

    Synchronous data parallelism takes the mean of all gradients, clips it if it
    clips, and lets one optimizer take a step. Islands do that each for itself,
    for `inner_steps` steps, and then an outer SGD takes a step with what they
    have changed, anchor minus the mean of their parameters. Each island keeps
    the state of its inner optimizer. When do all rounds end with the parameters
    that data parallelism has after as many steps, whatever the data are? Tell
    that of a configuration: what is exact, up to rounding, not what is near.

    Args:
        islands: how many, 1 or more.
        inner_steps: H, 1 or more.
        outer_rate: of the outer SGD.
        outer_momentum: of the outer SGD, Nesterov's.
        inner: "sgd", "momentum" (SGD with momentum) or "adamw".
        clips: whether gradients are clipped to a norm before an inner step.

    Returns: True where it is the same.

    Budget: a few conditions; nothing is trained.
    """
    raise NotImplementedError("not solved yet")
