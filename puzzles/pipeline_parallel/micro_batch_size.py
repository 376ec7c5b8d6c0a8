"""pipeline_parallel.micro_batch_size: The best size of a micro-batch.

rankwise check pipeline_parallel.micro_batch_size
rankwise hint pipeline_parallel.micro_batch_size

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping


def best_micro_batch(
    samples: int,
    p: int,
    forward: Mapping[int, float],
    backward: Mapping[int, float],
    state: int,
    activation: int,
    memory: int,
) -> int | None:
    """The best size of a micro-batch.

    How many samples should a micro-batch have? A device is busiest with many:
    one sample takes nearly as long as two. A pipeline is busiest with many
    micro-batches: in each step a rank waits for the first to come and for the
    last to come back. And memory has a say, too.

    It was measured how long a stage takes, forward and backward, for
    micro-batches of several sizes; all stages take equally long, and messages
    take no time. A step is 1F1B: p-1 times, a rank waits for as long as it
    takes forward and backward for a micro-batch. Of the activations of a stage,
    the first rank holds most: those of p micro-batches, or of all, where there
    are fewer.

    Which of the sizes makes the step shortest?

    Args:
        samples: b', of a step, that go through this pipeline.
        p: ranks.
        forward: {size: milliseconds}, how long a stage takes forward for a
            micro-batch of so many samples.
        backward: {size: milliseconds}, the same backward.
        state: bytes of parameters, gradients and optimizer on a rank.
        activation: bytes that a stage holds of one sample, between forward and
            backward.
        memory: bytes of a rank's device. It may be full.

    Returns: one of the sizes, of those that divide `samples`; None if none of
    them fits. Where several make the step equally short, any of them will do.

    Budget: a formula for each size, not a simulation of 2048 micro-batches.
    """
    raise NotImplementedError("not solved yet")
