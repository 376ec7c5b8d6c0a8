"""Heads of their own size, biases and feed-forwards without a gate, under any plan: equal to one process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.models.config import LINEAR, QKV
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.report import read_log
from reference.saves import Saves

Clusters = Callable[..., Cluster]
BASE = GPTConfig(layers=4, width=16, heads=4, kv_heads=2, hidden=24)
MODELS = {
    "Gemma": replace(BASE, head_size=6, tied=True, activation="gelu", kv_heads=1),
    "Mistral Nemo": replace(BASE, width=20, head_size=4),
    "Qwen2": replace(BASE, biases=QKV, tied=True),
    "biases everywhere": replace(BASE, biases=LINEAR, head_size=8),
    "no gate": replace(BASE, gated=False, biases=("query", "output", "up", "down")),
}
T4 = {"tensor_parallel": 4}
PLANS = {
    "tensor-parallel": (4, Plan(**T4)),
    "sequence-parallel, key-value heads shared": (4, Plan(**T4, sequence_parallel=True, recompute=Recompute.SELECTIVE)),
    "asynchronous": (
        4,
        Plan(DataParallelism.ZERO2, tensor_parallel=2, sequence_parallel=True, async_tensor_parallel=True),
    ),
    "sharded": (3, Plan(DataParallelism.FSDP, micro_batches=2, recompute=Recompute.FULL)),
    "pipeline": (2, Plan(DataParallelism.DDP, pipeline_parallel=2, micro_batches=4)),
    "split backward": (
        4,
        Plan(pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.ZB_V, tensor_parallel=2),
    ),
    "all axes": (
        8,
        Plan(
            DataParallelism.FSDP,
            pipeline_parallel=2,
            micro_batches=2,
            schedule=PipelineSchedule.ZB_H1,
            tensor_parallel=2,
            sequence_parallel=True,
        ),
    ),
}
BOUND = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3


def training(model: GPTConfig, batch: int = 12) -> TrainConfig:
    """Large steps: biases begin at zero, and are to matter."""
    return TrainConfig(
        model, steps=3, batch=batch, sequence=8, warmup=0, learning_rate=0.02, precision=PRECISIONS["fp64"]
    )


@pytest.mark.turns(4)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_any_plan_equals_one_process(clusters: Clusters, model: str, plan: str) -> None:
    ranks, laid_out = PLANS[plan]
    batch = laid_out.dp_size(ranks) * laid_out.micro_batches * 2
    config = training(MODELS[model], batch)
    expected = one_process(config)
    if biases := [value for name, value in expected.parameters.items() if name.endswith(".bias")]:
        assert all(value.abs().max() > 1e-3 for value in biases), "they have learned"
    for record in clusters(ranks).run(on_rank.record, config, laid_out):
        if record.parameters:
            assert max(largest_difference(record, expected).values()) < BOUND


@pytest.mark.parametrize("model", ["biases everywhere", "no gate"])
def test_a_checkpoint_of_one_split_goes_on_under_another(
    clusters: Clusters, short_text: Path, tmp_path: Path, model: str
) -> None:
    config = replace(training(MODELS[model], batch=8), data=str(short_text), steps=4)
    plans = [
        (4, Plan(tensor_parallel=4, sequence_parallel=True)),
        (4, Plan(DataParallelism.ZERO1, tensor_parallel=2)),
        (2, Plan()),
    ]
    losses = []
    for number, (ranks, plan) in enumerate(plans):
        part = replace(config, stop_after=min(4, 1 + number) if number < 2 else None)
        saves, log = Saves(tmp_path / "checkpoints", 1, resume=number > 0), tmp_path / str(number)
        clusters(ranks).run(on_rank.train, part, log, plan, saves)
        losses += [step.loss for step in read_log(log)[0]]
    assert losses == pytest.approx(one_process(config).losses, rel=1e-10)
