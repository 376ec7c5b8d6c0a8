"""A pipeline as a clock: in each cycle every micro-batch in flight moves on by one stage.

    cycle       0       1       2       3       4
    stage 0     0       1       2
    stage 1             0       1       2
    stage 2                     0       1       2

Micro-batch k is at stage s in cycle k + s. So m micro-batches and p stages take m + p - 1 cycles, of which a stage
computes in m and waits in p - 1. Backward runs the same clock, the other way around.

Huang et al. 2019, "GPipe"; Kim et al. 2020, "torchgpipe", sec. 3.2.1 (the generator that `clock_cycles` is).
"""


def clock_cycles(p: int, m: int) -> list[list[tuple[int, int]]]:
    """Which stages compute in each cycle of forward, and which micro-batch.

    Args:
        p: stages.
        m: micro-batches.

    Returns:
        For each cycle (stage, micro-batch) of all that compute, by stage.
    """
    return [
        [(stage, cycle - stage) for stage in range(max(0, cycle - m + 1), min(p, cycle + 1))]
        for cycle in range(m + p - 1)
    ]


def bubble_fraction(p: int, m: int, v: int) -> float:
    """The part of a step in which a rank waits: with GPipe and 1F1B (v = 1), and interleaved.

    A rank computes v m times (F + B) of one stage, and waits p - 1 times as long. F and B cancel.

    Args:
        p: ranks.
        m: micro-batches, a multiple of p where v is not 1.
        v: stages on a rank.

    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 2.2,
    which gives the bubble in relation to the time of computing instead: (p - 1) / (v m).
    """
    return (p - 1) / (v * m + p - 1)
