"""Goodput, measured: ranks of this machine train, a thread kills them at random, and the time is counted by what it
went into.

    python -m reference.resilience.lab.measured_goodput FILE      measures all rows anew, some minutes

Two ways to lose little are measured under the same stream of failures, which is Poisson's: the time to the next one is
exponentially distributed, and each kills one of the ranks that train.

    from disk    All ranks stop for a checkpoint every so many steps (`reference.saves`). When one dies, the others are
                 ended, all start anew and load: the classical case, of which Young's and Daly's formulas are.
    elastic      Each rank's state is copied to a neighbour after each step (`copies`). When one dies, a spare takes its
                 place, and the others keep what they have (`elastic`).

So that many failures fit into a minute, they come every few seconds, and a step is made longer by sleeping. What is
measured is real besides: processes are killed, files written, and groups made anew. The formula gets the mean time
between failures that was asked for, and of checkpoints and recoveries the means that were measured.
"""

import csv
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist

from reference.cluster import Cluster, Gone, RankError
from reference.config import TrainConfig
from reference.models import preset
from reference.plan import DataParallelism, Plan
from reference.planning.goodput import Reliability
from reference.saves import Saves
from reference.train import Training

from ..elastic import Lap, train_elastically
from ..store import reach, serve
from .history import Deed, Diary, History, Mark, Moment, told

RANKS = 4  # that train
PRELOAD = ("torch._dynamo", "reference.resilience.lab.measured_goodput")
CONFIG = TrainConfig(
    steps=100, batch=12, sequence=16, model=replace(preset("tiny"), layers=2, width=16, heads=2, kv_heads=2, hidden=32)
)
PLAN = Plan(data_parallel=DataParallelism.FSDP)


@dataclass(frozen=True)
class Conditions:
    """Under which something is measured.

    Attributes:
        between: M, seconds between failures in the mean.
        pace: seconds that each step sleeps.
        steps: that a training has.
        seed: of the failures.
    """

    between: float = 3.0
    pace: float = 0.03
    steps: int = 600
    seed: int = 0


@dataclass(frozen=True)
class Measured:
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


def from_disk(cluster: Cluster, every: int, conditions: Conditions) -> History:
    """Train to the end, from checkpoint to checkpoint, with a start of all ranks after each failure.

    Args:
        cluster: of as many ranks as train.
        every: steps between two checkpoints.
    """
    with tempfile.TemporaryDirectory() as folder:
        diary, saved = Diary(Path(folder)), Path(folder, "saved")
        ranks = range(cluster.world_size)
        cluster.ready()
        with failing(
            lambda: [(rank, pid) for rank, pid in zip(ranks, cluster.pids, strict=False)], conditions
        ) as deaths:
            while True:
                with suppress(RankError):
                    cluster.run(_train, diary, saved, every, conditions)
                    break
        return told(diary.read(), deaths)


def _train(diary: Diary, saved: Path, every: int, conditions: Conditions) -> None:
    """On each rank: from the last checkpoint to the end."""
    rank = dist.get_rank()
    config = replace(CONFIG, steps=conditions.steps)
    saves = Saves(saved, every, resume=any(saved.glob("*")) if saved.exists() else False)
    training = Training(config, dist.group.WORLD, torch.device("cpu"), PLAN)
    first = saves.begin(training)
    diary.note(rank, Mark.RESUMED, first)
    for step in range(first, conditions.steps):
        training.backward(step)
        training.update(step)
        time.sleep(conditions.pace)
        dist.barrier()
        diary.note(rank, Mark.STEP, step + 1)
        if saves.due(step + 1, conditions.steps):
            saves.save(training, step + 1)
            diary.note(rank, Mark.SAVE, step + 1)


def elastic(cluster: Cluster, conditions: Conditions, train_on: int = RANKS) -> History:
    """Train to the end with those who live; spares take the places of those who die, as long as there are some.

    Args:
        cluster: of those who train, and spares.
        train_on: how many train, where so many live.
    """
    with tempfile.TemporaryDirectory() as folder:
        diary = Diary(Path(folder))
        gone: set[int] = set()

        def living() -> list[tuple[int, int]]:
            gone.update(rank for _, rank in deaths)
            return [(rank, pid) for rank, pid in enumerate(pids) if rank not in gone][:train_on]

        pids = cluster.ready()
        begun = threading.Event()
        with failing(living, conditions, begun, leave=1) as deaths:
            watch = threading.Thread(target=_wait_for_a_step, args=(Path(folder), begun), daemon=True)
            watch.start()
            store = serve()
            results = cluster.survive(_train_elastically, store.port, diary, conditions, train_on)
        laps = next(laps for laps in results if not isinstance(laps, Gone))
        return told([*diary.read(), *resumed(laps)], deaths)


def _train_elastically(port: int, diary: Diary, conditions: Conditions, train_on: int) -> list[Lap]:
    """On each rank: with all who live."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()

    def after_step(_: Training, step: int) -> None:
        time.sleep(conditions.pace)
        diary.note(rank, Mark.STEP, step)

    laps, _ = train_elastically(
        replace(CONFIG, steps=conditions.steps),
        lambda ranks: (min(ranks, train_on), PLAN),
        partial(reach, "127.0.0.1", port),
        f"{rank:03}-{os.getpid()}",
        torch.device("cpu"),
        at_first=world_size,
        after_step=after_step,
    )
    return laps


def resumed(laps: Iterable[Lap]) -> Iterator[Moment]:
    """When ranks resumed, by the laps of one that lives to tell."""
    for lap in laps:
        for member in lap.round.members[: lap.ranks] if lap.resumed else ():
            yield Moment(lap.resumed, int(member.partition("-")[0]), Mark.RESUMED, lap.first or 0)


def _wait_for_a_step(folder: Path, begun: threading.Event) -> None:
    while not any(folder.glob("*.txt")):
        time.sleep(0.01)
    begun.set()


@contextmanager
def failing(
    living: Callable[[], list[tuple[int, int]]],
    conditions: Conditions,
    begun: threading.Event | None = None,
    leave: int = 0,
) -> Iterator[list[tuple[float, int]]]:
    """Kill a process at random from time to time, as long as this lasts. Yields the list that deaths are written to.

    Args:
        living: ranks and process ids of those that may die; where none are up, the failure waits until they are.
        begun: when set, failures begin; at once if left out.
        leave: so many are left alive.
    """
    chance, over, deaths = random.Random(conditions.seed), threading.Event(), []

    def run() -> None:
        while begun and not begun.wait(0.05):
            if over.is_set():
                return
        while not over.wait(chance.expovariate(1 / conditions.between)):
            while len(there := living()) <= leave and not over.wait(0.01):
                pass
            if over.is_set() or len(there) <= leave:
                return
            rank, pid = chance.choice(there)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                deaths.append((time.monotonic(), rank))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield deaths
    finally:
        over.set()
        thread.join()


def summary(way: str, every: int, histories: Iterable[History], conditions: Conditions) -> Measured:
    """One row, of one training or of several that went on under the same conditions."""
    several = list(histories)
    seconds = sum(each.seconds for each in several)
    spent = {part: sum(each.parts()[part] for each in several) for part in several[0].parts()}
    failures = sum(len(each.deaths) for each in several)

    def in_the_mean(*deeds: Deed) -> float:
        found = [stretch.seconds for each in several for stretch in each.stretches if stretch.deed in deeds]
        return mean(found) if found else 0.0

    return Measured(
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


def measure(intervals: Iterable[int], conditions: Conditions, trainings: int = 1) -> list[Measured]:
    """A row for each number of steps between checkpoints.

    Args:
        trainings: of each row, one after another, each with failures of its own.
    """
    rows = []
    with Cluster(RANKS, timeout=None, preload=PRELOAD) as cluster:
        for every in intervals:
            several = [replace(conditions, seed=conditions.seed + number) for number in range(trainings)]
            rows.append(summary("from disk", every, (from_disk(cluster, every, one) for one in several), conditions))
    return rows


def measure_elastic(conditions: Conditions, trainings: int = 1, spares: int = RANKS) -> Measured:
    """The row of elastic training, with a copy after each step."""
    with Cluster(RANKS + spares, timeout=None, preload=PRELOAD) as cluster:
        several = [replace(conditions, seed=conditions.seed + number) for number in range(trainings)]
        return summary("elastic", 1, (elastic(cluster, one) for one in several), conditions)


def costs(rows: Iterable[Measured]) -> Reliability:
    """What the formula is to know of trainings from disk: checkpoints and recoveries in the mean of all rows.

    All ranks together are its one GPU, which fails every M seconds.
    """
    disk = [row for row in rows if row.way == "from disk"]
    failures = sum(row.failures for row in disk)
    down = sum(row.down * row.failures for row in disk) / max(failures, 1)
    return Reliability(disk[0].between, mean(row.checkpoint for row in disk), restart=down)


def write(rows: Iterable[Measured], file: Path) -> None:
    """As a table of comma-separated values."""
    with file.open("w", newline="") as opened:
        table = csv.DictWriter(opened, [field.name for field in fields(Measured)], lineterminator="\n")
        table.writeheader()
        table.writerows(
            {key: f"{x:.5g}" if isinstance(x, float) else x for key, x in asdict(row).items()} for row in rows
        )


def read(file: Path) -> list[Measured]:
    """What `write` has written."""
    with file.open(newline="") as opened:
        return [
            Measured(*(field.type(row[field.name]) for field in fields(Measured))) for row in csv.DictReader(opened)
        ]


def main(file: Path) -> None:
    """Measure all rows of the lesson, and write them."""
    conditions = Conditions()
    rows = measure((1, 3, 10, 30, 100, 300), conditions, trainings=3)
    write([*rows, measure_elastic(replace(conditions, steps=300), trainings=6)], file)
    for row in read(file):
        print(row)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
