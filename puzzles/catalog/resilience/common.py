"""What several puzzles of this chapter share: what ranks have asked of a disk, and in which order."""

from typing import NamedTuple

from reference.ranks.answers.causality import Moment, happened_before
from reference.trace import Trace


class Asked(NamedTuple):
    """One thing that a rank has asked of the disk."""

    rank: int  # global
    place: int  # in this rank's log
    operation: str
    path: str
    other: str  # the new name, of a rename
    tick: int


def logs_of(case, outputs) -> list[Asked]:
    """The logs of all ranks."""
    return [
        Asked(rank, place, *entry)
        for rank, output in zip(case.global_ranks, outputs, strict=True)
        for place, entry in enumerate(output["log"])
    ]


def comes_before(trace: Trace, first: Asked, then: Asked) -> bool:
    """Whether the one is done before the other in every run: by the order of a rank's program, or by a message."""
    if first.rank == then.rank:
        return first.place < then.place
    return happened_before(trace, Moment(first.rank, first.tick), Moment(then.rank, then.tick))
