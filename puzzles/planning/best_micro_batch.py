"""planning.best_micro_batch: Bubble against efficiency.

rankwise check planning.best_micro_batch
rankwise hint planning.best_micro_batch

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def best_micro_batch(
    samples: int,
    stages: int,
    chunks: int,
    seconds: float,
    lost: float,
    state: int,
    activation: int,
    memory: int,
) -> int | None:
    """Bubble against efficiency.

    A product of few rows is slow: kernels have to start, weights have to be
    read, tiles are not full. A micro-batch of b windows takes a rank as long as
    b + h windows would at full speed, for there are h windows that it could
    have computed in what each micro-batch loses. So large micro-batches are
    better. But a pipeline waits (p - 1) / v times for as long as a micro-batch
    takes, where each rank has v chunks of the model. So small ones are better.

        step = (B / b + (p - 1) / v) (b + h) · seconds

    The first rank holds the activations of p micro-batches, or of all, if there
    are fewer. Which b makes the step shortest, of those that divide B and fit?

    Args:
        samples: B, windows of a step that go through this pipeline.
        stages: p.
        chunks: v.
        seconds: that a rank computes for one window at full speed.
        lost: h; any number from 0 on.
        state: bytes of a rank that stay.
        activation: bytes of a window.
        memory: bytes of a rank. It may be full.

    Returns: b; None if no size fits. Where several are equally good, any of
    them will do.

    Budget: sizes come in pairs, b and B / b, so it need not try all numbers up
    to B. Before you write, look for the best b if it need not be whole: how
    does it grow with B, and with p?
    """
    raise NotImplementedError("not solved yet")
