"""A run of islands that resumes is the run that was not interrupted, under any plan inside, whatever is under way."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.choices import Aggregation, Compress, GossipTopology, IslandText, Optimizer, Outer, Wire
from reference.cluster import Cluster, RankError
from reference.config import TrainConfig
from reference.data_parallel import gather_full
from reference.decentralized.control_variates import OWN
from reference.decentralized.meeting import flat
from reference.parallelize import DataParallelism, Plan
from reference.report import StepReport
from reference.resilience.preemption import Preempted
from reference.saves import Saves
from reference.train import Training, train

from .one_process import EXPERTS, config_of, far_apart, on_ranks

Clusters = Callable[..., Cluster]
AT = 4  # of 7 steps, in rounds of 3: in the middle of one, with a fragment under way


def sitting(config: TrainConfig, folder: str, resume: bool, plan: Plan, background: bool = False) -> dict[str, Tensor]:
    """Train as the command does, to the end or to `stop_after`."""
    saves = Saves(Path(folder), every=AT, resume=resume, in_background=background)
    return gather_full(train(config, dist.group.WORLD, torch.device("cpu"), plan, saves=saves).form)


CONFIGS = {
    "diloco": config_of(Outer.DILOCO, 2),
    "streaming": config_of(Outer.STREAMING, 2, fragments=2, overlap_steps=2, wire=Wire.FULL),
    "eager": config_of(Outer.EAGER, 2),
    "easgd": config_of(Outer.EASGD, 2),
    "noloco": config_of(Outer.NOLOCO, 2),
    "fedadam": config_of(Outer.FEDADAM, 2),
    "fedprox": config_of(Outer.FEDPROX, 2, proximal=1.0),
    "scaffold": config_of(Outer.SCAFFOLD, 2, taking_part=0.5, island_text=IslandText.OWN),
    "median": config_of(Outer.DILOCO, 2, aggregation=Aggregation.MEDIAN, liars=0),
    "masked": config_of(Outer.DILOCO, 2, secure_sum=True),
    "branches": config_of(Outer.BRANCHES, 2, inner_steps=None),
    "gossip": config_of(Outer.GOSSIP, 2),
    "gossip in pairs": config_of(Outer.GOSSIP, 4, topology=GossipTopology.RANDOM_PAIRS, inner_steps=1),
    "muon": config_of(Outer.DILOCO, 2, optimizer=Optimizer.MUON),
    "shampoo": config_of(Outer.DILOCO, 2, optimizer=Optimizer.SHAMPOO),
    "sgd": config_of(Outer.DILOCO, 2, optimizer=Optimizer.SGD),
    "compressed": config_of(Outer.DILOCO, 2, compress=Compress.TOP_K, compress_share=0.1),
    "experts": config_of(Outer.DILOCO, 2, model=EXPERTS),
}
OTHERS = ("diloco", "gossip", "fedadam", "fedprox", "scaffold", "branches")
INSIDE = {"compressed": Plan(DataParallelism.DDP)}  # FSDP for all others


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_equals_uninterrupted(four: Cluster, tmp_path: Path, name: str) -> None:
    config, folder = CONFIGS[name], str(tmp_path / "run")
    first = INSIDE.get(name, Plan(DataParallelism.FSDP))
    whole = four.run(on_ranks, config, first)
    four.run(sitting, replace(config, stop_after=AT), folder, False, first, name == "streaming")
    then = Plan(tensor_parallel=2) if name in OTHERS else first  # another plan inside
    found = four.run(sitting, config, folder, True, then)
    for mine, (its, _) in zip(found, whole, strict=True):
        assert far_apart(mine, its) < (1e-15 if then == first else 1e-11)


def test_islands_that_are_told_to_stop_do_so_where_they_meet_next(four: Cluster, tmp_path: Path) -> None:
    """They ask one step before a round ends: told in the second step of three, they stop after the third."""

    def stopped(folder: Path) -> str:
        def report(step: StepReport) -> None:
            if step.step == 2 and dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Preempted) as reason:
            saves = Saves(folder, every=AT * 10)
            train(CONFIGS["diloco"], dist.group.WORLD, torch.device("cpu"), Plan(DataParallelism.FSDP), report, saves)
        return str(reason.value)

    assert set(four.run(stopped, tmp_path)) == {
        f"told to stop: saved after step 3 in {tmp_path}; --resume continues there"
    }


def control_of_a_round(config: TrainConfig, folder: str) -> tuple[Tensor, Tensor]:
    """Resume for one round: an island's control after it, and the mean of the gradients that it had."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"))
    begun = Saves(Path(folder), resume=True).begin(training)
    meeting, gradients = training.updates.meeting, []
    correct = meeting.correct

    def look_and_correct(scale: float) -> None:
        gradients.append(flat(master.grad for master in meeting.masters))
        correct(scale)

    meeting.correct = look_and_correct
    assert len(list(training.steps(begun, config.steps))) == len(gradients)
    return flat(meeting.kept[OWN]), torch.stack(gradients).mean(0)


def test_a_control_is_the_mean_of_the_steps_that_a_round_had(clusters: Clusters, tmp_path: Path) -> None:
    """A run of 7 steps ends with a round of one. With 9 it resumes with a round of two, where others have three."""
    config, folder = config_of(Outer.SCAFFOLD, 2), str(tmp_path / "run")
    clusters(2).run(sitting, config, folder, False, Plan())
    for control, mean in clusters(2).run(control_of_a_round, replace(config, steps=9), folder):
        assert torch.allclose(control, mean, rtol=1e-12, atol=0)


def test_another_number_of_islands_is_refused_before_anything_is_loaded(four: Cluster, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    four.run(sitting, replace(CONFIGS["diloco"], stop_after=AT), folder, False, Plan())
    for other, reason in (
        (replace(CONFIGS["diloco"], islands=4), "is of a run with islands 2, and this has 4"),
        (CONFIGS["eager"], "is of a run with outer diloco, and this has eager"),
        (config_of(Outer.NONE, 1, inner_steps=None), "is of a run with islands 2, and this has none"),
    ):
        with pytest.raises(RankError, match=reason):
            four.run(sitting, other, folder, True, Plan())


def test_another_text_for_each_island_is_refused(four: Cluster, tmp_path: Path) -> None:
    for text, other in ((IslandText.SHARED, IslandText.OWN), (IslandText.OWN, IslandText.SHARED)):
        folder, config = str(tmp_path / text), config_of(Outer.LOCAL_SGD, 2, island_text=text)
        four.run(sitting, replace(config, stop_after=AT), folder, False, Plan())
        with pytest.raises(RankError, match="island text"):
            four.run(sitting, replace(config, island_text=other), folder, True, Plan())
