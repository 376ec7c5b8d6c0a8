"""Training goes on with those who are left, and learns what a run learns that nothing has happened to."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from reference.cluster import Cluster, Gone, Last, Nodes
from reference.plan import DataParallelism, Plan
from reference.resilience.round_group import RoundOver
from reference.saves import Saves
from reference.train import Training

from .elastic_runs import CONFIG, PRELOAD, STEPS, Happens, nothing, require_right, run, run_on

pytestmark = pytest.mark.alone  # who is gone is told by a clock: beside other tests a rank may come too late

KILLED = Gone(-signal.SIGKILL)


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(4, timeout=40, preload=PRELOAD) as cluster:
        yield cluster


def dies(when: dict[int, int]):
    """Ranks that kill themselves after some steps."""

    def happens(rank: int, training: Training | None, step: int) -> None:
        if when.get(rank) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return happens


def test_where_nothing_happens_there_is_one_lap(four: Cluster) -> None:
    laps = require_right(run(four))
    assert [(lap.ranks, lap.first, len(lap.losses)) for lap in laps] == [(4, 0, STEPS)]


@pytest.mark.parametrize("when", [{2: 3}, {0: 1}, {3: STEPS}, {1: 2, 3: 4}, {0: 2, 1: 3, 2: 4}], ids=str)
def test_others_go_on_where_ranks_die(four: Cluster, when: dict[int, int]) -> None:
    results = run(four, happens=dies(when))
    assert [rank for rank, result in enumerate(results) if result == KILLED] == sorted(when)
    laps = require_right(results)
    assert laps[-1].ranks == {3: 3, 2: 2, 1: 1}[4 - len(when)]
    for before, after in itertools.pairwise(laps):
        assert after.first >= max(before.losses, default=-1)  # at most one step is done again


PLANS = {  # and how many of three ranks train by it: where two belong together, one waits as a spare
    "replicas": (Plan(data_parallel=DataParallelism.DDP), 3),
    "ZeRO-1": (Plan(data_parallel=DataParallelism.ZERO1), 3),
    "tensor": (Plan(data_parallel=DataParallelism.FSDP, tensor_parallel=2), 2),
    "pipeline": (Plan(pipeline_parallel=2, micro_batches=2), 2),
    "context": (Plan(data_parallel=DataParallelism.FSDP, context_parallel=2), 2),
}


@pytest.mark.parametrize("name", PLANS)
def test_any_plan_goes_on(four: Cluster, name: str) -> None:
    plan, left = PLANS[name]
    assert require_right(run(four, plan=plan, happens=dies({1: 2})))[-1].ranks == left


def test_a_spare_takes_the_place_of_one_who_dies(four: Cluster) -> None:
    """12 windows in 12 micro-batches are one replica of two stages on up to four ranks: two of them are spares."""
    plan = Plan(pipeline_parallel=2, micro_batches=12)
    laps = require_right(run(four, plan=plan, happens=dies({0: 3})))
    assert [lap.ranks for lap in laps] == [2, 2]


def test_two_who_die_at_once_may_be_too_many(four: Cluster) -> None:
    """With two copies, the loss of both who hold a part is the end, and is said so."""
    with pytest.raises(Exception, match=r"lost|gone"):
        run(four, happens=dies({0: 3, 1: 3}))


def test_a_disk_serves_where_memory_is_lost(four: Cluster, tmp_path: Path) -> None:
    laps = require_right(run(four, happens=dies({0: 5, 1: 5}), saves=Saves(tmp_path, every=3)))
    assert (laps[-1].ranks, laps[-1].first) == (2, 3)


@pytest.mark.parametrize("every", [2, 4])
def test_steps_since_the_last_copy_are_done_again(four: Cluster, every: int) -> None:
    laps = require_right(run(four, happens=dies({2: 5}), copy_every=every))
    assert laps[-1].first in ({2, 4} if every == 2 else {0, 4})


def hangs(after: int, who: int):
    """A rank that stops for good, as one whose GPU hangs."""

    def happens(rank: int, training: Training | None, step: int) -> None:
        if rank == who and step == after:
            os.kill(os.getpid(), signal.SIGSTOP)

    return happens


def test_one_who_hangs_is_left_behind_and_ended(four: Cluster) -> None:
    results = run(four, happens=hangs(3, 2), lease=1.5, last=Last(bool, seconds=1.0))
    assert results[2] == Gone(-signal.SIGKILL, hung=True)
    assert require_right(results)[-1].ranks == 3


def pauses(after: int, who: int, seconds: float):
    """A rank that is stopped for some seconds, and goes on."""

    def happens(rank: int, training: Training | None, step: int) -> None:
        if step in (after + 1, after + 2):
            time.sleep(seconds)  # until it has come back, also on a busy machine
        if rank == who and step == after:
            pid = os.getpid()
            if os.fork() == 0:
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
                os._exit(0)
            os.kill(pid, signal.SIGSTOP)
            os.wait()

    return happens


def test_one_who_comes_back_is_let_in(four: Cluster) -> None:
    results = run(four, happens=pauses(2, 1, 3.0), lease=1.5)
    laps = require_right(results)
    assert [lap.ranks for lap in laps if lap.losses][-1] == 4
    assert 3 in [lap.ranks for lap in laps]


def is_left_by_others(who: int, before: Happens):
    """A rank that still waits in the end, for a last word of others who have left."""

    def happens(rank: int, training: Training | None, step: int) -> None:
        before(rank, training, step)
        if rank == who and step == STEPS:
            barrier = dist.barrier

            def left_in_it() -> None:
                dist.barrier = barrier
                barrier()
                raise RoundOver("a member has left, and this call waits for it")

            dist.barrier = left_in_it

    return happens


@pytest.mark.parametrize("before", [nothing, pauses(2, 1, 3.0)], ids=["one lap", "three laps"])
def test_one_who_is_left_by_others_has_what_it_learned(four: Cluster, before: Happens) -> None:
    """Neither nothing nor what an earlier lap, which ended for a guest, had learned."""
    results = run(four, happens=is_left_by_others(0, before), lease=1.5)
    require_right(results)
    laps, held, _ = results[0]
    assert "a member has left" in laps[-2].why and not laps[-1].losses
    assert held


available = Nodes.available()


@pytest.mark.skipif(not available, reason=f"no nodes here: {available.why_not}")
def test_a_node_dies_and_the_other_goes_on() -> None:
    with Cluster(4, nodes=2, timeout=40, preload=PRELOAD) as cluster:
        results = run_on(cluster, happens=dies({2: 3, 3: 3}))
    assert results[2:] == [KILLED, KILLED]
    assert require_right(results)[-1].ranks == 2


@pytest.mark.skipif(not available, reason=f"no nodes here: {available.why_not}")
def test_a_node_that_is_cut_off_comes_back(tmp_path: Path) -> None:
    """Node 1 does not go on alone: it has no word from the store, and waits. Mended, it is let in."""
    config, begun = replace(CONFIG, steps=16), tmp_path / "begun"

    def slowly(rank: int, training: Training, step: int) -> None:
        begun.touch()
        time.sleep(0.8)

    with Cluster(4, nodes=2, timeout=200, preload=PRELOAD) as cluster:

        def cut_and_mend() -> None:
            while not begun.exists():
                time.sleep(0.1)
            cluster.cut(1)
            time.sleep(6.0)
            cluster.mend(1)

        threading.Thread(target=cut_and_mend, daemon=True).start()
        results = run_on(cluster, happens=slowly, config=config, lease=1.5)
    laps = require_right(results, config)
    sizes = [lap.ranks for lap in laps if lap.losses]
    assert 2 in sizes and sizes[-1] == 4
    assert all(config.steps - 1 in of_rank[-1].losses for of_rank, _, _ in results)
