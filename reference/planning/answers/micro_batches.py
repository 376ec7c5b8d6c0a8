"""The micro-batch that makes a step shortest: products want many rows, a pipeline wants many micro-batches.

A product of r rows takes as long as r + h rows would at full speed: h rows are lost each time, to kernels that start
and to weights that are read. So a step of B windows in micro-batches of b is

    (B / b + (p - 1) / v) · (b + h) · a

which has its minimum at b = sqrt(B h v / (p - 1)): four times the batch, twice the micro-batch. It falls before and
rises after, so of sizes that divide B the two next to it are the best ones, if memory has room for them.

Narayanan et al. 2021 (arXiv:2104.04473), sec. 3.4; `reference.pipeline_parallel.answers.throughput` takes measured
times instead.
"""

from math import isqrt


def best_micro_batch(
    samples: int, stages: int, chunks: int, seconds: float, lost: float, state: int, activation: int, memory: int
) -> int | None:
    """The size with the shortest step, of those that divide `samples` and fit; None if none fits.

    Args:
        samples: B, windows of a step that go through this pipeline.
        stages: p, ranks of the pipeline.
        chunks: v, of a rank, by which the bubble is divided.
        seconds: a, that a rank computes for a window at full speed, forward and backward.
        lost: h, windows for which it could have computed in what a micro-batch loses.
        state: bytes of parameters, gradients and optimizer on a rank.
        activation: bytes that a rank holds of a window between forward and backward.
        memory: bytes of a rank; at most p micro-batches are in flight.
    """
    small = [size for size in range(1, isqrt(samples) + 1) if samples % size == 0]
    sizes = small + [samples // size for size in small]

    def step(size: int) -> float:
        return (samples // size + (stages - 1) / chunks) * (size + lost) * seconds

    def fits(size: int) -> bool:
        return state + min(stages, samples // size) * size * activation <= memory

    return min(filter(fits, sizes), key=step, default=None)
