"""What stays the same when the number of ranks changes: the batch, its windows, their weight. What changes: who reads
which of them, and in how many micro-batches."""

from collections.abc import Sequence


def elastic_batch(
    step: int, rank: int, sizes: Sequence[tuple[int, int]], batch: int, most: int
) -> tuple[int, int, int, float]:
    """What a rank reads in a step.

    Args:
        step: counted from 0.
        rank: of those that are there in this step.
        sizes: (step, n), ascending: from this step on there are n ranks. The first one is of step 0.
        batch: windows that all ranks together read in a step.
        most: windows that fit into a rank's memory at a time.

    Returns:
        The first window and the one after the last that this rank reads; micro-batches of the step, the same on every
        rank; and the weight of each window's mean loss in the step's.
    """
    ranks = max(size for size in sizes if size[0] <= step)[1]
    size, longer = divmod(batch, ranks)
    begin = step * batch + rank * size + min(rank, longer)
    longest = size + (longer > 0)
    return begin, begin + size + (rank < longer), -(-longest // most), 1 / batch
