"""Islands that wait for no other do what one process does in the order that they have recorded, and do so again."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import LateRate, Optimizer, Outer
from reference.cluster import Cluster, RemoteException
from reference.config import TrainConfig
from reference.data_parallel import gather_full
from reference.decentralized.asynchronous import arrivals_in
from reference.errors import BadInput
from reference.parallelize import DataParallelism, Plan
from reference.saves import Saves
from reference.train import require_fit, train
from reference.updates import EveryStep

from .one_process import ENDS, EXACT, STEPS, H, config_of, far_apart, late_rounds_alone, on_ranks
from .test_islands import CLOSE

SLOW = 0.05  # seconds of a step, times the number of the island


def saved(config: TrainConfig, folder: str, plan: Plan, before_step: Callable[[int, int], None]) -> dict[str, Tensor]:
    """Train, and save as the run ends. Before each step an island does something of its own: (island, step)."""
    own_step, island = EveryStep.step, dist.get_rank() * config.islands // dist.get_world_size()

    def late_step(self: EveryStep, step: int) -> float:
        before_step(island, step)
        return own_step(self, step)

    EveryStep.step = late_step
    try:
        saves = Saves(Path(folder), every=config.steps)
        return gather_full(train(config, dist.group.WORLD, torch.device("cpu"), plan, saves=saves).form)
    finally:
        EveryStep.step = own_step


def sleep_by_island(island: int, step: int) -> None:
    """Islands are as much slower as their number is higher."""
    time.sleep(SLOW * island)


def at_once(island: int, step: int) -> None:
    """All islands are as fast."""


def wait_for_first(file: Path, island: int, step: int) -> None:
    """From their second step on, all others wait until the first island is at its last one."""
    if island == 0 and step == STEPS - 1:
        file.touch()
    until = time.monotonic() + 60
    while island > 0 and step > 0 and not file.exists():
        assert time.monotonic() < until, "the first island waits for the others"
        time.sleep(0.01)


WAYS = {
    "async diloco": (config_of(Outer.ASYNC_DILOCO, 4), Plan(), 0.7, 0.9),
    "late changes count less": (config_of(Outer.ASYNC_DILOCO, 4, late_rate=LateRate.BY_STALENESS), Plan(), 0.7, 0.9),
    "fsdp inside": (config_of(Outer.ASYNC_DILOCO, 2, outer_rate=0.5), Plan(DataParallelism.FSDP), 0.5, 0.9),
    "replicas inside": (config_of(Outer.ASYNC_DILOCO, 2), Plan(DataParallelism.DDP), 0.7, 0.9),
    "a bound": (config_of(Outer.ASYNC_DILOCO, 4, staleness_bound=1, inner_steps=1), Plan(), 0.7, 0.9),
    "async sgd": (
        config_of(Outer.ASYNC_SGD, 4, inner_steps=1, optimizer=Optimizer.SGD, learning_rate=0.1, weight_decay=0.0),
        Plan(),
        1.0,
        0.0,
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_it_is_one_process_in_the_order_that_was_recorded(four: Cluster, tmp_path: Path, name: str) -> None:
    config, plan, rate, momentum = WAYS[name]
    found = four.run(saved, config, str(tmp_path / "run"), plan, sleep_by_island)
    arrivals = arrivals_in(tmp_path / "run")
    make = torch.optim.SGD if config.optimizer is Optimizer.SGD else torch.optim.AdamW
    wanted = late_rounds_alone(config, arrivals, rate, momentum, make)
    assert all(far_apart(each, wanted) < CLOSE for each in found)
    assert all(far_apart(each, found[0]) == 0 for each in found)
    assert max(each.staleness for each in arrivals) > 0
    again = replace(config, order_of=str(tmp_path / "run"))
    for mine, its in zip(four.run(saved, again, str(tmp_path / "again"), plan, at_once), found, strict=True):
        assert far_apart(mine, its) == 0
    assert arrivals_in(tmp_path / "again") == arrivals


def test_none_waits_without_a_bound_and_with_one_they_do(four: Cluster, tmp_path: Path) -> None:
    free = config_of(Outer.ASYNC_SGD, 4, inner_steps=1)
    four.run(saved, free, str(tmp_path / "free"), Plan(), partial(wait_for_first, tmp_path / "last"))
    versions = {(each.worker, each.step): each.version for each in arrivals_in(tmp_path / "free")}
    assert all(versions[0, STEPS - 2] < versions[island, 1] for island in (1, 2, 3))
    again = replace(free, staleness_bound=1, order_of=str(tmp_path / "free"))
    with pytest.raises(RemoteException, match="let islands be further ahead: take its --staleness-bound, or none"):
        four.run(saved, again, str(tmp_path / "again"), Plan(), at_once)
    four.run(saved, replace(free, staleness_bound=1), str(tmp_path / "bound"), Plan(), sleep_by_island)
    steps = [0] * 4
    for each in arrivals_in(tmp_path / "bound"):
        assert each.step - min(steps) <= 1
        steps[each.worker] += 1


def test_a_bound_of_nothing_is_diloco(four: Cluster) -> None:
    """All changes of a round are then of one anchor, and make one outer step."""
    config = config_of(Outer.ASYNC_DILOCO, 4, staleness_bound=0)
    mine, its = four.run(on_ranks, config), four.run(on_ranks, config_of(Outer.DILOCO, 4))
    for (parameters, _), (others, _) in zip(mine, its, strict=True):
        assert far_apart(parameters, others) < CLOSE


def sitting(config: TrainConfig, folder: str, resume: bool, plan: Plan) -> dict[str, Tensor]:
    saves = Saves(Path(folder), every=4, resume=resume)
    return gather_full(train(config, dist.group.WORLD, torch.device("cpu"), plan, saves=saves).form)


@pytest.mark.parametrize("bound", [None, 0, 1])
def test_it_resumes_from_the_middle_of_rounds(four: Cluster, tmp_path: Path, bound: int | None) -> None:
    config = config_of(Outer.ASYNC_DILOCO, 2, staleness_bound=bound)
    first = str(tmp_path / "run")
    four.run(sitting, replace(config, stop_after=4), first, False, Plan(DataParallelism.FSDP))
    found = four.run(sitting, config, first, True, Plan(tensor_parallel=2))
    arrivals = arrivals_in(tmp_path / "run")
    assert len(arrivals) == 2 * len(ENDS)
    wanted = late_rounds_alone(config, arrivals, 0.7, 0.9)
    assert all(far_apart(each, wanted) < CLOSE for each in found)


def test_an_order_that_cannot_be_taken_is_refused(four: Cluster, tmp_path: Path) -> None:
    plain = str(tmp_path / "plain")
    four.run(sitting, config_of(Outer.DILOCO, 2), plain, False, Plan())
    asked = config_of(Outer.ASYNC_DILOCO, 2, order_of=plain)
    with pytest.raises(BadInput, match="has no order: it is of a run without --outer async-diloco"):
        require_fit(asked, Plan(), 4)
    with pytest.raises(BadInput, match="no checkpoint"):
        require_fit(replace(asked, order_of=str(tmp_path / "nowhere")), Plan(), 4)
    four.run(sitting, replace(asked, order_of=None), str(tmp_path / "two"), False, Plan())
    with pytest.raises(BadInput, match="has the order of 2 islands, and this run has 4"):
        require_fit(replace(asked, islands=4, order_of=str(tmp_path / "two")), Plan(), 4)
    for options, reason in (
        ({"outer": Outer.DILOCO, "order_of": plain}, "--order-of is of --outer async-diloco, async-sgd, not of diloco"),
        ({"outer": Outer.ASYNC_SGD, "staleness_bound": -1}, "0 or more rounds ahead of the slowest, not -1"),
        ({"outer": Outer.ASYNC_SGD, "outer_momentum": 0.9}, "not of async-sgd"),
    ):
        with pytest.raises(BadInput, match=reason):
            replace(EXACT, islands=2, **options)


def some_rounds(config: TrainConfig) -> int:
    from .test_island_bytes import some_rounds

    return sum(some_rounds(config))


def test_a_round_sends_its_change_and_gets_an_anchor(four: Cluster) -> None:
    rounds = 2
    config = config_of(Outer.ASYNC_DILOCO, 4, steps=100, inner_steps=H)
    numels, trace = four.trace(some_rounds, config)
    said = (numels[0] + 1) * 8 * rounds
    assert trace.bytes_sent[0] == pytest.approx(3 * said, rel=2e-3)
    assert all(trace.bytes_sent[rank] == pytest.approx(said, rel=2e-3) for rank in (1, 2, 3))
