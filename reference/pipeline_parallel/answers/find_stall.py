"""Which rank blocks a pipeline that has come to a halt?

When one rank stops, all the others do, and each of them says that it waits for its neighbour. So ask the neighbour, and
its neighbour, until a rank has no such excuse. Four answers are possible, and each is mended elsewhere:

    computing   a rank has all it needs, and does not come back: a device, a kernel, a disk, a dead process
    message     what a rank waits for has been sent: the link
    missing     what a rank waits for, its neighbour never computes: a schedule with a hole
    circle      ranks wait for each other: a schedule that cannot be followed

This is what flight recorders of collectives are read for: of each rank, what it has done and in which call it is.
"""

from collections.abc import Sequence

from reference.pipeline_parallel.schedule import Action, Kind


def find_stall(
    lines: Sequence[Sequence[Action]], done: Sequence[int], computing: Sequence[bool]
) -> tuple[str, list[int]]:
    """Why, and which ranks are involved.

    Args:
        lines: of each rank, what it is to compute, in order. Rank r has stage r.
        done: of each rank, how many of its actions it has finished.
        computing: of each rank, whether it is inside its next action; else it has finished, or waits.

    Returns:
        ("computing", [rank]); ("message", [source, target]); ("missing", [the rank that has no such action]); or
        ("circle", [the ranks that wait for each other, ascending]).
    """
    asked = []
    rank = next(rank for rank, line in enumerate(lines) if done[rank] < len(line))
    while rank not in asked:
        asked.append(rank)
        if computing[rank]:
            return "computing", [rank]
        kind, _, micro_batch = lines[rank][done[rank]]
        source = rank - 1 if kind is Kind.FORWARD else rank + 1
        if source == len(lines):  # the last stage goes back when it has been forward
            kind, source = Kind.FORWARD, rank
        needed = Action(kind, source, micro_batch)
        if needed in lines[source][: done[source]]:
            return "message", [source, rank]
        if needed not in lines[source]:
            return "missing", [source]
        rank = source
    return "circle", sorted(asked[asked.index(rank) :])
