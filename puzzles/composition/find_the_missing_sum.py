"""composition.find_the_missing_sum: Find the missing sum.

rankwise check composition.find_the_missing_sum
rankwise hint composition.find_the_missing_sum

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping, Sequence


def find_the_missing_sum(
    sizes: Mapping[str, int],
    sums: Mapping[str, Sequence[str]],
    found: Mapping[str, Sequence[float]],
) -> list[tuple[str, str, str]]:
    """Find the missing sum.

    A training step runs on a mesh, the loss falls, and one of its sums is
    wrong. So the step is run once with dyed parts: on rank r, every gradient is
    10^r, whatever it was. Then the sums are read, digit by digit, rank 0 on the
    right. On a mesh of dp x tp = 2 x 2, where "norm" is to be summed along both
    axes (sequence parallelism: its ranks see other tokens), "query" and "bias"
    along dp alone:

                   rank 0   rank 1   rank 2   rank 3
        0.norm       1111     1111     1111     1111     each part is there once
        0.query       101     1010      101     1010     ranks 0 and 2, 1 and 3
        0.norm         11       11     1100     1100     what is wrong here?

    `reference/composition/lab/dyed_step.py` is such a program, which runs on
    ranks and takes faults: `ledger_of_step(Cluster(4), {"dp": 2, "tp": 2},
    {("norm", "dp"): "missing"})`. A parameter is summed along one axis after
    the other, by an all-reduce for each. Faults are

        "missing"    there is no all-reduce along this axis
        "twice"      there are two
        "mean"       there is one, and what comes out is divided by the ranks
                     along the axis

    Write what reads such a ledger. A parameter has one fault at most, and along
    an axis of more than one rank.

    Args:
        sizes: ranks along each axis, by name, the outermost first. The last
            counts fastest.
        sums: for each parameter the axes along which it is to be summed.
        found: for each parameter a float for each rank, in order: what the rank
            has after all sums.

    Returns: a list of (parameter, axis, fault), three strings, for the
    parameters that have a fault, in the order of `sums`. Where the same numbers
    have several explanations, any will do: twice along one of two axes that are
    equally long.

    Budget: 250 layers in two seconds. A fault is in the numbers of each rank:
    there is no need to make up those of all ranks.
    """
    raise NotImplementedError("not solved yet")
