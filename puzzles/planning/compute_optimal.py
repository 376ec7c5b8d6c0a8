"""planning.compute_optimal: The best model for a budget.

rankwise check planning.compute_optimal
rankwise hint planning.compute_optimal

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def compute_optimal(
    flops: float, size: tuple[float, float], data: tuple[float, float]
) -> tuple[float, float]:
    """The best model for a budget.

    A dense transformer of N parameters, trained on D tokens, ends with a loss
    of E + A / N^α + B / D^β. E is what no model removes. With a budget of C
    FLOPs, a larger model has to stop after fewer tokens. Which N and D give the
    least loss?

    Each parameter takes 2 FLOPs for each token forward, and twice as many
    backward; leave attention out.

    Args:
        flops: C, of the whole training.
        size: (A, α), both above 0.
        data: (B, β), both above 0.

    Returns: N and D, as floats.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
