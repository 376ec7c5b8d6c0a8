"""How many samples a micro-batch should have.

Large ones keep a device busy: a kernel on one sample takes nearly as long as on two. Small ones keep a pipeline busy:
the more micro-batches, the smaller the part of a step in which ranks wait for the first and for the last. So measure
how long a stage takes with each size, and work out what a step takes, with the bubble.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 3.4.
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
    """The size of micro-batch with which a step of 1F1B takes least, of those that were measured and fit.

    A step of m = samples / b micro-batches takes (m + p - 1) (t_f(b) + t_b(b)). The first rank holds most: min(p, m) of
    them.

    Args:
        samples: b', of a step, that go through this pipeline.
        p: ranks.
        forward: t_f, how long a stage takes forward for a micro-batch of each size.
        backward: t_b, the same backward.
        state: bytes of parameters, gradients and optimizer on a rank.
        activation: bytes that a stage holds of one sample between forward and backward.
        memory: bytes of a rank's device.

    Returns:
        Samples in a micro-batch, which divide those of a step; None if no size fits. The first size on a tie.
    """

    def seconds(b: int) -> float:
        return (samples // b + p - 1) * (forward[b] + backward[b])

    def fits(b: int) -> bool:
        return state + min(p, samples // b) * b * activation <= memory

    possible = [b for b in forward if samples % b == 0 and fits(b)]
    return min(possible, key=seconds, default=None)
