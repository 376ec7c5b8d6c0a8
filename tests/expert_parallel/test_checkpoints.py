"""A model with experts is saved under one plan and goes on under another: other experts on each rank, same numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.data_parallel import gather_full
from reference.memory.precision import PRECISIONS
from reference.models.moe_config import Balance, MoEConfig
from reference.oracle import one_process, relative_difference
from reference.parallelize import DataParallelism, Plan
from reference.saves import Saves
from reference.train import Training, summed

EXACT = 1e-10  # in float64, of additions in another order
BEFORE, AFTER = 3, 6  # steps, after which the first plan saves, and the second one ends
MODEL = MoEConfig(
    layers=4, width=16, heads=4, kv_heads=2, hidden=24, experts=4, top_k=2, expert_hidden=12, shared_experts=1,
    dense_layers=1, balance=Balance.BIAS, balance_rate=0.02,
)  # fmt: skip
CONFIG = TrainConfig(MODEL, steps=AFTER, batch=12, sequence=16, warmup=2, precision=PRECISIONS["fp64"])


@dataclass(frozen=True)
class Kept:
    """What a run has in the end, whole, by the names of the whole model's parameters."""

    losses: list[float]  # of the steps that it took
    masters: dict[str, Tensor]
    first_moments: dict[str, Tensor]
    second_moments: dict[str, Tensor]
    bias: Tensor  # of routers
    moments_before: dict[str, Tensor]  # as they were loaded; empty where nothing was


def take_steps(config: TrainConfig, plan: Plan, saves: Saves, last: int) -> Kept:
    """What one rank finds who begins, or resumes, trains until a step, and saves."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    first, losses = saves.begin(training), []
    before = moments(training, "exp_avg") if first else {}
    for step in range(first, last):
        losses.append(summed(training.backward(step), training.loss_group))
        training.update(step)
    saves.save(training, last)
    kept = (moments(training, name) for name in ("exp_avg", "exp_avg_sq"))
    return Kept(losses, gather_full(training.form), *kept, training.balancing.bias, before)


def moments(training: Training, name: str) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter."""
    return gather_full(training.form, lambda part: training.optimizer.state[part.master][name])


EP4 = 4, Plan(expert_parallel=4)
EP2 = 2, Plan(expert_parallel=2, micro_batches=2)
FSDP = 4, Plan(DataParallelism.FSDP, expert_parallel=2)
FSDP_ALONE = 3, Plan(DataParallelism.FSDP)
DDP = 2, Plan(DataParallelism.DDP, expert_parallel=2)
TENSOR = 4, Plan(tensor_parallel=2, expert_parallel=2, expert_tensor_parallel=2)
SLICED = 4, Plan(DataParallelism.ZERO2, tensor_parallel=2, sequence_parallel=True, expert_parallel=4)
PIPELINE = 4, Plan(pipeline_parallel=2, micro_batches=2, expert_parallel=2)
FIVE_AXES = 8, Plan(
    DataParallelism.ZERO1, pipeline_parallel=2, context_parallel=2, tensor_parallel=2, micro_batches=2,
    expert_parallel=4,
)  # fmt: skip
UNEVEN = 3, Plan(expert_parallel=3)  # ranks with two experts, two, and none
"""Ranks, and how they are laid out."""

Clusters = Callable[..., Cluster]


@pytest.fixture(scope="module")
def through(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kept, Kept]:
    """What one rank has where the first plan saves, and in the end: a run that nothing has interrupted."""
    half, whole = (Saves(tmp_path_factory.mktemp("through")) for _ in range(2))
    alone = clusters(1)
    return alone.run(take_steps, CONFIG, Plan(), half, BEFORE)[0], alone.run(take_steps, CONFIG, Plan(), whole, AFTER)[
        0
    ]


def differences(mine: Kept, oracle: Kept) -> dict[str, float]:
    """How far apart two runs are, for each kind of number; all but losses, of which one has more."""
    found = {"bias": relative_difference(mine.bias, oracle.bias)}
    for kind in ("masters", "first_moments", "second_moments"):
        ours, theirs = getattr(mine, kind), getattr(oracle, kind)
        assert ours.keys() == theirs.keys()
        found[kind] = max(relative_difference(ours[name], theirs[name]) for name in theirs)
    return found


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(EP4, EP2, id="ep 4 to ep 2"),
        pytest.param(EP2, EP4, id="ep 2 to ep 4"),
        pytest.param(FSDP, DDP, id="fsdp to ddp"),
        pytest.param(DDP, FSDP_ALONE, id="ddp to fsdp without ep"),
        pytest.param(EP4, TENSOR, id="ep 4 to ep 2 x etp 2"),
        pytest.param(TENSOR, SLICED, id="etp 2 to slices of tokens"),
        pytest.param(EP4, PIPELINE, id="ep 4 to a pipeline"),
        pytest.param(PIPELINE, FSDP, id="a pipeline to fsdp"),
        pytest.param(FIVE_AXES, EP2, id="all axes to ep 2"),
        pytest.param(UNEVEN, FIVE_AXES, id="ep 3 to all axes"),
    ],
)
def test_experts_go_on_under_another_plan(
    clusters: Clusters, through: tuple[Kept, Kept], tmp_path: Path, before: tuple[int, Plan], after: tuple[int, Plan]
) -> None:
    (ranks, plan), (other_ranks, other_plan) = before, after
    head, *_ = clusters(ranks).run(take_steps, CONFIG, plan, Saves(tmp_path), BEFORE)
    tails = clusters(other_ranks).run(take_steps, CONFIG, other_plan, Saves(tmp_path, resume=True), AFTER)
    half, whole = through
    assert max(differences(head, half).values()) < EXACT, differences(head, half)
    for tail in tails:
        assert max(differences(tail, whole).values()) < EXACT, differences(tail, whole)
        assert all(tail.moments_before[name].equal(value) for name, value in head.first_moments.items())
    assert relative_difference(head.losses + tails[0].losses, whole.losses) < EXACT


def test_the_run_that_nothing_interrupts_is_that_of_one_process(through: tuple[Kept, Kept]) -> None:
    whole, alone = through[1], one_process(CONFIG)
    assert relative_difference(whole.losses, alone.losses) < EXACT
    assert max(relative_difference(whole.masters[name], value) for name, value in alone.parameters.items()) < EXACT


def test_a_bias_that_was_forgotten_would_show(clusters: Clusters, through: tuple[Kept, Kept], tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing of it: it decides where tokens go."""

    def forget(saves: Saves) -> list[float]:
        training = Training(CONFIG, dist.group.WORLD, torch.device("cpu"), EP2[1])
        first, losses = saves.begin(training), []
        training.balancing.load_state_dict({"bias": torch.zeros_like(training.balancing.bias).tolist()})
        for step in range(first, AFTER):
            losses.append(summed(training.backward(step), training.loss_group))
            training.update(step)
        return losses

    clusters(4).run(take_steps, CONFIG, EP4[1], Saves(tmp_path), BEFORE)
    forgetful, *_ = clusters(2).run(forget, Saves(tmp_path, resume=True))
    assert relative_difference(forgetful, through[1].losses[BEFORE:]) > 1e3 * EXACT
