"""Goodput, measured: ranks of this machine train, a thread kills them at random, and the time is counted by what it
went into.

    python -m reference.resilience.lab.measured_goodput      measures all rows of the lesson anew, some minutes

Trainings from disk and elastic ones (`watched`) go through the same kind of failures, a Poisson stream: the time to the
next one is exponentially distributed, and each kills one of the ranks that train. So that many of them fit into a
minute, they come every few seconds, and steps sleep. The formula gets the mean time between failures that was asked
for, and of checkpoints and recoveries the means that were measured.
"""

import csv
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean

from reference.cluster import Cluster
from reference.planning.goodput import Reliability

from .history import Deed, TrainingHistory
from .watched import PRELOAD, Conditions, elastic, from_disk

RANKS = 4  # that train
EVERY = (12, 1, 40, 4)  # steps between two checkpoints
COPY_EVERY = (1, 12)  # steps between two copies of elastic trainings
CONDITIONS = Conditions(steps=480, between=6.0)
FILE = Path(__file__).with_name("measured_goodput.csv")


@dataclass(frozen=True)
class MeasuredGoodput:
    """A training under failures.

    Attributes:
        way: "from disk", "elastic".
        every: steps between two checkpoints, or copies.
        step: seconds of one, in the mean.
        checkpoint: δ, seconds of one, in the mean; 0 where copies travel while others compute.
        down: seconds from a failure until training has resumed, in the mean.
        between: M, as asked for.
        failures: that there were.
        seconds: of the training.
        useful, checkpoints, rework: parts of it; the rest is `down`.
    """

    way: str
    every: int
    step: float
    checkpoint: float
    down: float
    between: float
    failures: int
    seconds: float
    useful: float
    checkpoints: float
    rework: float

    @property
    def interval(self) -> float:
        """τ, seconds of training between two checkpoints."""
        return self.every * self.step


def summary(way: str, every: int, histories: Iterable[TrainingHistory], conditions: Conditions) -> MeasuredGoodput:
    """One row, of one training or of several that went on under the same conditions."""
    several = list(histories)
    seconds = sum(each.seconds for each in several)
    spent = {part: sum(each.parts()[part] for each in several) for part in several[0].parts()}
    failures = sum(len(each.deaths) for each in several)

    def in_the_mean(*deeds: Deed) -> float:
        found = [stretch.seconds for each in several for stretch in each.stretches if stretch.deed in deeds]
        return mean(found) if found else 0.0

    return MeasuredGoodput(
        way,
        every,
        in_the_mean(Deed.STEP, Deed.AGAIN),
        in_the_mean(Deed.SAVE),
        spent["down"] / failures if failures else 0.0,
        conditions.between,
        failures,
        seconds,
        spent["useful"] / seconds,
        spent["checkpoints"] / seconds,
        spent["rework"] / seconds,
    )


def measure(intervals: Iterable[int], conditions: Conditions, trainings: int = 1) -> list[MeasuredGoodput]:
    """A row for each number of steps between checkpoints.

    Args:
        trainings: of each row, one after another, each with failures of its own.
    """
    rows = []
    with Cluster(RANKS, timeout=None, preload=PRELOAD) as cluster:
        for every in intervals:
            several = [replace(conditions, seed=conditions.seed + number) for number in range(trainings)]
            rows.append(
                summary("from disk", every, (from_disk(cluster, every, one).history for one in several), conditions)
            )
    return rows


def measure_elastic(conditions: Conditions, trainings: int = 1, spares: int = RANKS) -> MeasuredGoodput:
    """The row of elastic training, with copies as often as `conditions` say."""
    with Cluster(RANKS + spares, timeout=None, preload=PRELOAD) as cluster:
        several = [replace(conditions, seed=conditions.seed + number) for number in range(trainings)]
        return summary(
            "elastic", conditions.copy_every, (elastic(cluster, one, RANKS).history for one in several), conditions
        )


def costs(rows: Iterable[MeasuredGoodput]) -> Reliability:
    """What the formula is to know of trainings from disk: checkpoints and recoveries in the mean of all rows.

    All ranks together are its one GPU, which fails every M seconds.
    """
    disk = [row for row in rows if row.way == "from disk"]
    failures = sum(row.failures for row in disk)
    down = sum(row.down * row.failures for row in disk) / max(failures, 1)
    return Reliability(disk[0].between, mean(row.checkpoint for row in disk), restart=down)


def write(rows: Iterable[MeasuredGoodput], file: Path) -> None:
    """As a table of comma-separated values."""
    with file.open("w", newline="") as opened:
        table = csv.DictWriter(opened, [field.name for field in fields(MeasuredGoodput)], lineterminator="\n")
        table.writeheader()
        table.writerows(
            {key: f"{x:.5g}" if isinstance(x, float) else x for key, x in asdict(row).items()} for row in rows
        )


def read(file: Path) -> list[MeasuredGoodput]:
    """What `write` has written."""
    with file.open(newline="") as opened:
        return [
            MeasuredGoodput(*(field.type(row[field.name]) for field in fields(MeasuredGoodput)))
            for row in csv.DictReader(opened)
        ]


def main(file: Path = FILE) -> None:
    """Measure all rows of the lesson, and write each as soon as it is there."""
    few = replace(CONDITIONS, steps=CONDITIONS.steps // 4)  # there are no more spares than die in that time
    rows = []
    for every in EVERY:
        rows += measure([every], CONDITIONS, trainings=2)
        write(rows, file)
    for every in COPY_EVERY:
        rows.append(measure_elastic(replace(few, copy_every=every), trainings=5))
        write(rows, file)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
