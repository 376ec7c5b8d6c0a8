"""A node that is cut off and comes back: no island hangs, and all end with the same parameters."""

import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from reference.choices import Outer
from reference.cluster import Cluster
from reference.cluster.nodes import SWITCH, Nodes
from reference.config import TrainConfig
from reference.decentralized.absences import IslandsThatComeAndGo
from reference.errors import BadInput
from reference.resilience.quorum import StoreQuorum
from reference.resilience.store import reach
from reference.train import Training

from .one_process import STEPS, config_of, far_apart, on_ranks

CPU, PATIENCE, CUT = torch.device("cpu"), 2.0, 3
ROUNDS, H, PORT = 40, 2, 29400
STORE = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
options = {"is_master": True, "wait_for_workers": False, "timeout": timedelta(seconds=300)}
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), **options)
time.sleep(3600)
"""  # as `reference.resilience.store` does, with more patience: it looks for itself by names that nodes do not have


class Noted(IslandsThatComeAndGo):
    """Writes down who has met; the first island waits in each round until all of a test has happened."""

    folder: Path | None = None

    def meet(self) -> None:
        before = len(self.met)
        super().meet()
        if self.folder and len(self.met) > before:
            with (self.folder / f"met-{self.island}").open("a") as file:
                file.write("".join(map(str, self.met[-1][1])) + "\n")
            if self.island == 0 and not (self.folder / "enough").exists():
                time.sleep(0.1)


def come_and_go(config: TrainConfig, folder: str | None, together: int = 1, host: str | None = None):
    """On each rank: whom it met, its parameters, and what it raised."""
    default = reach(host, PORT, 300) if host else c10d._get_default_store()
    store = dist.PrefixStore("come and go", default)
    quorum = StoreQuorum(store, dist.get_rank(), dist.get_world_size(), PATIENCE, together)
    island = Noted(Training(config, dist.group.WORLD, CPU), quorum, store)
    island.folder = folder and Path(folder)
    met = island.run()
    quorum.close()
    parameters = {part.name: part.master.detach().clone() for part in island.training.form.parts}
    return met, parameters, [repr(each) for each in island.troubles]


def seen(folder: Path, what: str) -> bool:
    """Whether the first island has met others in these two rounds or more."""
    file = folder / "met-0"
    return file.exists() and file.read_text().splitlines().count(what) >= 2


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


@pytest.mark.alone
def test_a_node_is_cut_off_and_returns(tmp_path: Path) -> None:
    if not (found := Nodes.available()):
        pytest.skip(found.why_not)
    config = config_of(Outer.DILOCO, 4, steps=ROUNDS * H, inner_steps=H)
    with Cluster(4, nodes=4, preload=("torch._dynamo", "reference.train"), timeout=120) as cluster:
        cluster.nodes.start_on_switch([sys.executable, "-c", STORE, SWITCH, str(PORT)])
        results: list = []
        run = threading.Thread(
            target=lambda: results.extend(cluster.run(come_and_go, config, str(tmp_path), 1, SWITCH))
        )
        run.start()
        try:
            until(lambda: seen(tmp_path, "0123"))
            cluster.cut(CUT)
            until(lambda: seen(tmp_path, "012"))
            cluster.mend(CUT)
            before = (tmp_path / "met-0").read_text().splitlines().count("0123")
            until(lambda: (tmp_path / "met-0").read_text().splitlines().count("0123") > before + 1)
        finally:
            cluster.mend(CUT)
            (tmp_path / "enough").touch()
            run.join()
    assert len(results) == 4
    (met, parameters, _), *others = results
    assert met[-1] == (ROUNDS * H, (0, 1, 2, 3)) and (0, 1, 2) in [islands for _, islands in met]
    steps = [step for step, _ in met]  # an island that the machine holds up for longer than that is late for a round
    assert steps == sorted({*steps}) and all(step % H == 0 for step in steps)
    for _, its, _ in others:
        assert far_apart(its, parameters) == 0
    assert all(bool(x.isfinite().all()) for x in parameters.values())


def begin_while_one_is_cut_off(config: TrainConfig, folder: Path):
    """As `come_and_go`, of islands of two nodes, which make their groups once a node is cut off."""
    (folder / f"here-{dist.get_rank()}").touch()
    until((folder / "cut").exists, 200)
    Training(config, dist.group.WORLD, CPU)
    return come_and_go(config, None, 2, SWITCH)


@pytest.mark.alone
def test_a_node_is_cut_off_while_groups_are_made(tmp_path: Path) -> None:
    """gloo by itself gives up after four tries of three seconds, and then one rank fails and the others wait for it."""
    if not (found := Nodes.available()):
        pytest.skip(found.why_not)
    config = config_of(Outer.DILOCO, 2)
    with Cluster(4, nodes=4, preload=("torch._dynamo", "reference.train"), timeout=400) as cluster:
        cluster.ready()
        cluster.nodes.start_on_switch([sys.executable, "-c", STORE, SWITCH, str(PORT)])
        results: list = []
        run = threading.Thread(
            target=lambda: results.extend(cluster.survive(begin_while_one_is_cut_off, config, tmp_path))
        )
        run.start()
        try:
            until(lambda: all((tmp_path / f"here-{rank}").exists() for rank in range(4)), 200)
            cluster.cut(CUT)
            (tmp_path / "cut").touch()
            time.sleep(15)
        finally:
            cluster.mend(CUT)
            run.join()
    assert len(results) == 4
    (met, parameters, _), *others = results
    assert met[-1] == (STEPS, (0, 1))
    assert all(far_apart(its, parameters) == 0 for _, its, _ in others)


def test_where_all_are_there_it_is_diloco(clusters) -> None:
    four, config = clusters(4), config_of(Outer.DILOCO, 2)
    whole = four.run(on_ranks, config)
    for (met, parameters, troubles), (expected, _) in zip(four.run(come_and_go, config, None, 2), whole, strict=True):
        assert met == [(3, (0, 1)), (6, (0, 1)), (7, (0, 1))] and not troubles
        assert far_apart(parameters, expected) < 1e-12


def test_only_those_that_can_are_let_in(clusters) -> None:
    def refused() -> str:
        training = Training(config_of(Outer.EASGD, 1), dist.group.WORLD, CPU)
        try:
            IslandsThatComeAndGo(training, None, None)
        except BadInput as error:
            return str(error)

    assert "--outer diloco or local-sgd" in clusters(1).run(refused)[0]
