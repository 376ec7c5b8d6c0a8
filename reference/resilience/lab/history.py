"""What became of a training's time: steps that count, steps that were lost, saves, and recovery.

Ranks write down what they have done as they go (`Diary`), since one that dies leaves nothing else. Afterwards `told`
looks back: a step that was taken, and from before which a rank later resumed, was lost; one that was taken a second
time, and stands, was done again.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from reference.errors import BadInput


class DiaryMark(StrEnum):
    """What has just ended."""

    RESUMED = "resumed"  # the rank holds the state to train on from
    STEP = "step"
    SAVE = "save"
    DIED = "died"  # written by one that is about to


@dataclass(frozen=True)
class DiaryEntry:
    """A line of a diary.

    Attributes:
        seconds: `time.monotonic()`.
        rank: who wrote it.
        mark: what has just ended.
        step: how many steps had been taken.
    """

    seconds: float
    rank: int
    mark: DiaryMark
    step: int


class Deed(StrEnum):
    """What a stretch of time went into."""

    STEP = "step"
    AGAIN = "step done again"
    LOST = "lost: done in vain, or cut off"
    SAVE = "save"
    RECOVERY = "recovery"


@dataclass(frozen=True)
class Stretch:
    """What a rank did for some time.

    Attributes:
        rank: of the cluster, from the first to the last process that had this number.
        deed: what it was.
        begin, end: seconds since the training began.
        step: the step that was taken; the number of steps that was saved or resumed from; 0 where something was cut
            off.
    """

    rank: int
    deed: Deed
    begin: float
    end: float
    step: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True)
class TrainingHistory:
    """A training, as it went.

    Attributes:
        stretches: of all ranks, in no order.
        deaths: seconds since the training began, and the rank.
        seconds: from its first moment to its last.
    """

    stretches: Sequence[Stretch]
    deaths: Sequence[tuple[float, int]]
    seconds: float

    @property
    def ranks(self) -> list[int]:
        """Those that did something, or died."""
        return sorted({each.rank for each in self.stretches} | {rank for _, rank in self.deaths})

    @property
    def taken(self) -> int:
        """How many steps the busiest rank has taken, those in vain counted."""
        steps = [each.rank for each in self.stretches if each.step and each.deed in (Deed.STEP, Deed.AGAIN, Deed.LOST)]
        return max(map(steps.count, self.ranks))

    def parts(self) -> dict[str, float]:
        """Seconds that went into "useful", "checkpoints", "rework" and "down", in the mean of ranks that trained.

        They are called as in `reference.planning.goodput`; "down" is its detection and restarts together.
        """
        spent = {deed: sum(each.seconds for each in self.stretches if each.deed is deed) for deed in Deed}
        whole = sum(spent.values()) / self.seconds
        parts = {
            "useful": spent[Deed.STEP] + spent[Deed.AGAIN],
            "checkpoints": spent[Deed.SAVE],
            "rework": spent[Deed.LOST],
            "down": spent[Deed.RECOVERY],
        }
        return {part: seconds / whole for part, seconds in parts.items()}


class Diary:
    """A folder in which each process writes a file of its own, line by line.

    Args:
        folder: is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, rank: int, mark: DiaryMark, step: int) -> None:
        """Write that something has just ended."""
        with (self.folder / f"{rank}.txt").open("a") as file:
            file.write(f"{time.monotonic()} {rank} {mark} {step}\n")

    def steps(self, since: float = 0.0) -> int:
        """The most steps that a rank has taken, by what was written since then."""
        return max(
            (each.step for each in self.read() if each.mark is DiaryMark.STEP and each.seconds > since), default=0
        )

    def read(self) -> list[DiaryEntry]:
        """All moments, in their order. A line that was cut off by a death is none."""
        found = []
        for file in self.folder.glob("*.txt"):
            for line in file.read_text().splitlines():
                words = line.split()
                if len(words) == 4 and words[2] in set(DiaryMark):
                    found.append(DiaryEntry(float(words[0]), int(words[1]), DiaryMark(words[2]), int(words[3])))
        return sorted(found, key=lambda moment: moment.seconds)


def told(moments: Iterable[DiaryEntry], deaths: Iterable[tuple[float, int]]) -> TrainingHistory:
    """What became of the time from the first moment to the last.

    Args:
        moments: of all ranks. On each rank steps follow each other since it has resumed.
        deaths: of those that did not write so themselves: `time.monotonic()`, and the rank. Those before the first
            moment and after the last are left out.

    Raises:
        BadInput: if there is no moment.
    """
    written = sorted(moments, key=lambda moment: moment.seconds)
    ordered = [moment for moment in written if moment.mark is not DiaryMark.DIED]
    deaths = [*deaths, *((moment.seconds, moment.rank) for moment in written if moment.mark is DiaryMark.DIED)]
    if not ordered:
        raise BadInput("there is no moment in this diary: no rank has come so far as to resume")
    first, last = ordered[0].seconds, ordered[-1].seconds
    dead = sorted((at, rank) for at, rank in deaths if first <= at <= last)
    of_rank = defaultdict(list)
    for moment in ordered:
        of_rank[moment.rank].append(moment)
    resumed = [moment for moment in ordered if moment.mark is DiaryMark.RESUMED]
    stretches = []
    for rank, mine in of_rank.items():
        died = [at for at, who in dead if who == rank]
        taken: set[int] = set()
        for before, moment in pairwise(mine):
            if moment.mark is DiaryMark.RESUMED:
                stretches += _cut_off(rank, before.seconds, moment, [at for at, _ in dead])
                continue
            deed = _deed(moment, resumed, taken)
            stretches.append(Stretch(rank, deed, before.seconds, moment.seconds, moment.step))
        if died and died[-1] > mine[-1].seconds:
            stretches.append(Stretch(rank, Deed.LOST, mine[-1].seconds, died[-1]))
    moved = [Stretch(s.rank, s.deed, s.begin - first, s.end - first, s.step) for s in stretches]
    return TrainingHistory(moved, [(at - first, rank) for at, rank in dead], last - first)


def _deed(moment: DiaryEntry, resumed: Iterable[DiaryEntry], taken: set[int]) -> Deed:
    """What the stretch before a moment was, by what came later. Notes the step in `taken`."""
    if moment.mark is DiaryMark.SAVE:
        return Deed.SAVE
    again = moment.step in taken
    taken.add(moment.step)
    if any(other.seconds > moment.seconds and other.step < moment.step for other in resumed):
        return Deed.LOST
    return Deed.AGAIN if again else Deed.STEP


def _cut_off(rank: int, since: float, moment: DiaryEntry, deaths: Iterable[float]) -> list[Stretch]:
    """From a last word, over the death that cut it off, until the rank has resumed."""
    died = next((at for at in deaths if since <= at <= moment.seconds), since)
    lost = [Stretch(rank, Deed.LOST, since, died)] if died > since else []
    return [*lost, Stretch(rank, Deed.RECOVERY, died, moment.seconds, moment.step)]
