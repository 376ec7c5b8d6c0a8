"""resilience.best_interval: How often to copy, and how often to save.

rankwise check resilience.best_interval
rankwise hint resilience.best_interval

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def best_intervals(
    between: float,
    survived: float,
    copy: float,
    stall: float,
    write: float,
    down: float,
) -> tuple[float, float, float]:
    """How often to copy, and how often to save.

    A training keeps its state in two places. From time to time it sends a copy
    to the memory of other nodes, for which it stops `copy` seconds; then the
    copy counts. And from time to time it saves to a disk: it stops `stall`
    seconds for a snapshot, which is written while training continues, and
    counts when it is written, `write` seconds after the stop. The next save
    cannot begin before that.

    Failures come once in `between` seconds in the mean, at any time. After a
    part `survived` of them a copy in memory is left, and training goes back to
    the last one. After the others all copies are gone, and it goes back to the
    last save that counts. Then `down` seconds pass until it resumes. How often
    should it copy, and how often save?

    Count as on an envelope: the seconds that are lost for each second of
    training. Let stops be short beside intervals, and let no failure come while
    training stops or is down. Copies do not help where saves are needed, and
    saves are too old where copies are left, so the two can be chosen one by
    one.

    Args:
        between: M, mean time between failures of all GPUs, in seconds.
        survived: the part of failures that a copy in memory survives, above 0
            and below 1.
        copy: seconds for which training stops for a copy.
        stall: seconds for which it stops for a save.
        write: seconds from then until the save counts.
        down: seconds from a failure until training resumes.

    Returns: seconds between two copies, seconds between two saves, and the
    seconds lost for each second of training at these.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
