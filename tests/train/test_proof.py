"""`make demo` proves what it says: the proof holds for an honest run, and for no other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

from rankwise import demo, on_rank
from rankwise.loss_curve import draw
from rankwise.proof import Check, equals_one_process, learned, replicas
from reference.cluster import Cluster
from reference.composition.lab.by_axis import bytes_by_axis
from reference.config import TrainConfig
from reference.data_parallel import flat
from reference.models import PRESETS
from reference.models.data import python_text
from reference.parallelize import DEFAULT_PLAN, Plan
from reference.report import StepReport, read_log

Clusters = Callable[..., Cluster]


@pytest.fixture
def config(short_text: Path) -> TrainConfig:
    return TrainConfig(PRESETS["tiny"], str(short_text), steps=12, batch=4, sequence=16)


def halved(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """A mistake that clipping hides from the parameters, and that AdamW nearly does."""
    flat(gradients, group)
    for gradient in gradients:
        gradient /= 2


def trained(
    cluster: Cluster, config: TrainConfig, folder: Path, plan: Plan = DEFAULT_PLAN
) -> tuple[list[on_rank.Outcome], list[StepReport]]:
    outcomes = cluster.run(on_rank.train, config, folder / "log", plan)
    return outcomes, read_log(folder / "log")[0]


def test_an_honest_run_is_proved(clusters: Clusters, config: TrainConfig, tmp_path: Path):
    ranks = clusters(demo.RANKS)
    outcomes, steps = trained(ranks, config, tmp_path, demo.PLAN)
    checks = [replicas(outcomes), *equals_one_process(ranks, config, steps, demo.PLAN)]
    assert [check.what for check in checks if not check.holds] == []
    assert len(checks) == 6


def test_a_wrong_run_is_not(clusters: Clusters, config: TrainConfig, tmp_path: Path):
    _, steps = trained(clusters(2), config, tmp_path, Plan(halved))
    checks = equals_one_process(clusters(2), config, steps, Plan(halved))
    assert "in float64: on gradients" in [check.what for check in checks if not check.holds]


def test_another_run_than_the_one_that_was_seen_is_not_proved(clusters: Clusters, config: TrainConfig, tmp_path: Path):
    _, steps = trained(clusters(2), config, tmp_path)
    other = [replace(step, loss=step.loss + 0.01) for step in steps]
    assert not equals_one_process(clusters(2), config, other, DEFAULT_PLAN)[0].holds


def test_replicas_that_differ_and_a_model_that_learned_nothing_are_told():
    same, other = on_rank.Outcome(3.2, "a", None), on_rank.Outcome(3.2, "b", None)
    assert replicas([same, same]).holds
    assert not replicas([same, other]).holds
    assert not learned(python_text(), same).holds
    assert not Check("nothing", float("nan"), 1.0).holds


def test_the_pictures_show_one_step_of_all_axes(clusters: Clusters, config: TrainConfig, tmp_path: Path):
    _, trace = clusters(demo.RANKS).trace(on_rank.step_apart, config, demo.PLAN)
    step = demo.last_step(trace)
    assert not step.unmatched
    assert min(event.begin for events in step.events for event in events) == 0
    model, windows = config.model, config.batch // 2 // demo.PLAN.micro_batches
    activation = windows * config.sequence * model.width * 4 // 2  # bytes: the rest comes from the tensor neighbour
    table = model.vocabulary * model.width * 4 // 2  # tied; this rank's half
    norm = 8
    sent = bytes_by_axis(step, demo.MESH)
    assert sent["pipe"] == [demo.PLAN.micro_batches * activation + table + norm] * demo.RANKS
    assert all(sent["data"]) and all(sent["tensor"])
    losses = draw([StepReport(1, 5.5, 1.0, 64, 0.1), StepReport(2, 4.5, 1.0, 128, 0.2)], held_out=4.0, entropy=3.26)
    demo.save_pictures(Console(quiet=True), tmp_path, losses, step)
    for name in ("loss.png", "pipeline.png", "traffic.png", "ranks_measured.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_model_writes_what_it_is_asked_for(clusters: Clusters, config: TrainConfig, tmp_path: Path):
    outcomes, _ = trained(clusters(2), config, tmp_path)
    text = demo.write(config, outcomes[0], more=5)
    assert text.startswith(demo.PROMPT.decode())
    assert text == demo.write(config, outcomes[0], more=5)


@pytest.mark.parametrize("world_size", [2, 4])
def test_only_rank_0_sends_its_parameters_home(
    clusters: Clusters, world_size: int, config: TrainConfig, tmp_path: Path
):
    outcomes, steps = trained(clusters(world_size), config, tmp_path)
    assert [outcome.parameters is not None for outcome in outcomes] == [True] + [False] * (world_size - 1)
    assert [step.step for step in steps] == list(range(1, config.steps + 1))
