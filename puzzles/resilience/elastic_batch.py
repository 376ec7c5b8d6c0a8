"""resilience.elastic_batch: When the number of ranks changes.

rankwise check resilience.elastic_batch
rankwise hint resilience.elastic_batch

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence


def elastic_batch(
    step: int,
    rank: int,
    sizes: Sequence[tuple[int, int]],
    batch: int,
    most: int,
) -> tuple[int, int, int, float]:
    """When the number of ranks changes.

    A node dies in the middle of a run, and training continues with the ranks
    that are left; later a spare comes. What is learned must not depend on it.
    So what a step is stays the same: the windows that are read, in the order of
    the run, `batch` of them in each step, and with them the learning rate,
    which follows the step. What changes is who reads which window, and how
    often a rank goes forward and backward in a step, since no more than `most`
    windows fit into its memory at a time.

    Windows are numbered in the order in which the run reads them: step s reads
    those from s · batch on. Of these rank 0 reads the first part, rank 1 the
    next one, and so on; where they do not divide, the first ranks read one
    more. A rank may read none. All ranks go through the same number of
    micro-batches, since they sum gradients together: as many as the rank needs
    that reads most.

    Args:
        step: counted from 0.
        rank: of those that are there in this step.
        sizes: a list of (step, n), ascending: from this step on there are n
            ranks. The first one is of step 0.
        batch: windows that all ranks together read in a step.
        most: windows that a rank can compute at a time.

    Returns: (begin, end, micro_batches, weight): this rank reads the windows
    from begin to before end; the micro-batches of the step; and by what the
    mean loss of one window is multiplied, so that the sum over all ranks is the
    loss of the step.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
