"""Trainings to which something happens, watched: what each rank did when, and what became of the time.

    from disk    All ranks stop for a checkpoint every so many steps (`reference.saves`). When one dies, the others are
                 ended, all start anew and load: the classical case, of which Young's and Daly's formulas are.
    elastic      Each rank's state is copied to a neighbour after each step (`copies`). When one dies, the others keep
                 what they have, and a spare takes its place where there is one (`elastic`).

Steps are made longer by sleeping, so that one sees them. All else is real: processes are killed, cables cut, files
written, and groups made anew.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from reference.cluster import Cluster, ClusterError, Gone, RankError
from reference.cluster.nodes import SWITCH
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import preset
from reference.plan import DataParallelism, Plan
from reference.report import StepReport
from reference.saves import Saves
from reference.train import Training
from reference.zero import checkpoint_folder

from ..copies import StateLost
from ..elastic import Lap, train_elastically
from ..membership import LEASE, runs
from ..store import reach, serve
from .history import Diary, DiaryEntry, DiaryMark, TrainingHistory, told

PRELOAD = ("torch._dynamo", "reference.resilience.lab.watched")
CONFIG = TrainConfig(
    steps=100,
    batch=12,
    sequence=16,
    warmup=2,
    model=replace(preset("tiny"), layers=2, width=16, heads=2, kv_heads=2, hidden=32),
    precision=PRECISIONS["fp64"],
)
PLAN = Plan(data_parallel=DataParallelism.FSDP)
PORT = 29_400  # of the store on the switch between nodes


@dataclass(frozen=True)
class Conditions:
    """Under which a training is watched.

    Attributes:
        steps: that it has.
        pace: seconds that each step sleeps.
        between: M, seconds between failures in the mean; None where none come by chance.
        seed: of the failures.
        dies: after how many steps which rank dies.
        lease: seconds without a word, after which an elastic training counts a member as gone.
        copy_every: steps between two copies of an elastic training.
        save_every: steps between its checkpoints on disk, for what no copy survives; None for none.
    """

    steps: int = 60
    pace: float = 0.03
    between: float | None = None
    seed: int = 0
    dies: Mapping[int, int] | None = None
    lease: float = LEASE
    copy_every: int = 1
    save_every: int | None = None


@dataclass(frozen=True)
class Watched:
    """A training, and what it learned.

    Attributes:
        history: what became of its time.
        losses: nats per token, by number of steps taken; from disk, of those since the last start alone.
    """

    history: TrainingHistory
    losses: Mapping[int, float]


def from_disk(cluster: Cluster, every: int, conditions: Conditions) -> Watched:
    """Train to the end, from checkpoint to checkpoint, with a start of all ranks after each failure.

    Args:
        cluster: of as many ranks as train.
        every: steps between two checkpoints.
    """
    with tempfile.TemporaryDirectory() as folder:
        diary, saved = Diary(Path(folder)), Path(folder, "saved")
        cluster.ready()
        losses: dict[int, float] | None = None  # until a call returns: the checkpoint of the last step may be the last
        with failing(lambda: list(enumerate(cluster.pids)), conditions) as deaths:
            while losses is None:
                known = len(deaths)
                try:
                    losses = cluster.run(_from_checkpoint, diary, saved, every, conditions)[0]
                except ClusterError:  # ranks that were killed before they were up
                    if len(deaths) == known:
                        raise
                except RankError:
                    continue
        return Watched(told(diary.read(), deaths), losses)


def _from_checkpoint(diary: Diary, saved: Path, every: int, conditions: Conditions) -> dict[int, float]:
    """On each rank: from the last checkpoint to the end. Returns losses of the steps that were taken here."""
    rank, losses = dist.get_rank(), {}
    saves = Saves(saved, every, resume=checkpoint_folder.latest(saved) is not None)
    training = Training(replace(CONFIG, steps=conditions.steps), dist.group.WORLD, torch.device("cpu"), PLAN)
    first = saves.begin(training)
    diary.note(rank, DiaryMark.RESUMED, first)
    for step in range(first, conditions.steps):
        loss = training.backward(step)
        training.update(step)
        time.sleep(conditions.pace)
        dist.all_reduce(loss, group=training.loss_group)
        losses[step + 1] = float(loss)
        diary.note(rank, DiaryMark.STEP, step + 1)
        _die_if(rank, step + 1, conditions, diary)
        if saves.due(step + 1, conditions.steps):
            saves.save(training, step + 1)
            diary.note(rank, DiaryMark.SAVE, step + 1)
    return losses


def elastic(
    cluster: Cluster,
    conditions: Conditions,
    train_on: int | None = None,
    meanwhile: Mapping[int, Callable[[], None]] | None = None,
) -> Watched:
    """Train to the end with those who live; spares take the places of those who die, as long as there are some.

    Where too many die at once, and a state is lost with all who held it, all go back to the last checkpoint on disk, if
    there are any, or begin from the start.

    Args:
        cluster: of those who train, and spares. On nodes, their ranks find each other over the switch.
        train_on: how many train, where so many live; all if left out. As many as divide a batch of 12.
        meanwhile: what to do, in this process, after so many steps: cut a cable, for one.
    """
    ranks, pids = train_on or cluster.world_size, []
    with tempfile.TemporaryDirectory() as folder:
        diary, begun = Diary(Path(folder)), time.monotonic()

        def may_die() -> list[tuple[int, int]]:
            left = [(rank, pid) for rank, pid in enumerate(pids) if runs(pid)]
            return left[:ranks] if len(left) > 1 and diary.steps(begun) else []

        with failing(may_die, conditions) as deaths, _doing(meanwhile or {}, diary):
            while True:
                pids[:], begun = cluster.ready(), time.monotonic()
                host, port, store = _store_for(cluster)
                try:
                    results = cluster.survive(_elastically, host, port, diary, conditions, ranks)
                    break
                except RankError as error:
                    if store is None or StateLost.__name__ not in str(error):
                        raise
        del store  # it has served until now
        of_living = [laps for laps in results if not isinstance(laps, Gone)]
        losses = {step + 1: loss for laps in of_living for lap in laps for step, loss in lap.losses.items()}
        return Watched(told([*diary.read(), *resumed(of_living)], deaths), dict(sorted(losses.items())))


def _store_for(cluster: Cluster) -> tuple[str, int, object]:
    """Where a store listens that this cluster's ranks can reach, and what must be held as long."""
    try:
        nodes = cluster.nodes
    except ClusterError:  # all are on this machine
        store = serve()
        return "127.0.0.1", store.port, store
    command = f"exec {sys.executable} -m reference.resilience.store {SWITCH} {PORT}"
    nodes.start_on_switch(["sh", "-c", f"{command} > /dev/null 2>&1"])  # it warns of names that addresses do not have
    return SWITCH, PORT, None


def _elastically(host: str, port: int, diary: Diary, conditions: Conditions, train_on: int) -> list[Lap]:
    """On each rank: with all who live."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()

    def after_step(_: Training, report: StepReport) -> None:
        time.sleep(conditions.pace)
        diary.note(rank, DiaryMark.STEP, report.step)
        _die_if(rank, report.step, conditions, diary)

    saves = Saves(diary.folder / "saved", conditions.save_every) if conditions.save_every else None
    with _quiet():
        laps, _ = train_elastically(
            replace(CONFIG, steps=conditions.steps),
            lambda ranks: (max(n for n in range(1, min(ranks, train_on) + 1) if CONFIG.batch % n == 0), PLAN),
            partial(reach, host, port),
            f"{rank:03}-{os.getpid()}",
            torch.device("cpu"),
            copy_every=conditions.copy_every,
            saves=saves,
            lease=conditions.lease,
            at_first=world_size,
            after_step=after_step,
        )
    return laps


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not show what torch writes of a store that cannot be reached for a while: a page, each time."""
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def _die_if(rank: int, step: int, conditions: Conditions, diary: Diary) -> None:
    """End this process, as a fault of its machine would, if that is its fate, and was not before."""
    if (conditions.dies or {}).get(step) != rank:
        return
    if not any(moment.mark is DiaryMark.DIED and moment.step == step for moment in diary.read()):  # but once
        diary.note(rank, DiaryMark.DIED, step)
        os.kill(os.getpid(), signal.SIGKILL)


def resumed(of_living: Iterable[Iterable[Lap]]) -> Iterator[DiaryEntry]:
    """When ranks resumed, by the laps of those who live to tell, one of each round."""
    rounds = {lap.round.number: lap for laps in of_living for lap in laps if lap.resumed}
    for lap in rounds.values():
        for member in lap.round.members[: lap.ranks]:
            yield DiaryEntry(lap.resumed, int(member.partition("-")[0]), DiaryMark.RESUMED, lap.first or 0)


@contextmanager
def failing(may_die: Callable[[], list[tuple[int, int]]], conditions: Conditions) -> Iterator[list[tuple[float, int]]]:
    """Kill a process at random from time to time, as long as this lasts. Yields the list that deaths are written to.

    Args:
        may_die: ranks and process ids. Where there are none, a failure that is due waits until there are.
    """
    chance, over, deaths = random.Random(conditions.seed), threading.Event(), []

    def run() -> None:
        while not over.wait(chance.expovariate(1 / conditions.between)):
            while not (there := may_die()):
                if over.wait(0.01):
                    return
            rank, pid = chance.choice(there)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                deaths.append((time.monotonic(), rank))

    thread = threading.Thread(target=run, daemon=True)
    if conditions.between:
        thread.start()
    try:
        yield deaths
    finally:
        over.set()
        if conditions.between:
            thread.join()


@contextmanager
def _doing(what: Mapping[int, Callable[[], None]], diary: Diary) -> Iterator[None]:
    """Do things once so many steps are written down, each once."""
    over = threading.Event()

    def run() -> None:
        for after in sorted(what):
            while diary.steps() < after:
                if over.wait(0.02):
                    return
            what[after]()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
