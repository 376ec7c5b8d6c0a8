"""A run on 4, then 3, then 2 ranks has the losses of one that nothing interrupts: data, dropout, moments, biases."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.loss_scaling import LossScaler
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.models.moe_config import Balance, MoEConfig
from reference.oracle import one_process
from reference.parallelize import DataParallelism, Plan
from reference.report import read_log
from reference.saves import Saves
from reference.train import Training

Clusters = Callable[..., Cluster]
EXACT = 1e-10  # in float64, of additions in another order
EXPERTS = MoEConfig(
    layers=2, width=16, heads=4, kv_heads=2, hidden=24, experts=4, top_k=2, expert_hidden=12, balance=Balance.BIAS,
    balance_rate=0.02, dropout=0.1,
)  # fmt: skip
CONFIG = TrainConfig(PRESETS["tiny"], steps=9, batch=12, sequence=16, warmup=2, precision=PRECISIONS["fp64"])
LEGS = (
    (4, Plan(DataParallelism.FSDP)),
    (3, Plan(DataParallelism.ZERO1, micro_batches=2)),
    (2, Plan(tensor_parallel=2, sequence_parallel=True)),
)
"""Ranks, and how they are laid out."""


WAYS = {"at once": {}, "in the background": {"in_background": True}, "what has changed": {"full_every": 3}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", [replace(PRESETS["tiny"], dropout=0.2), EXPERTS], ids=["dropout", "experts"])
def test_four_then_three_then_two_ranks_are_one_run(
    clusters: Clusters, short_text: Path, tmp_path: Path, model: object, way: str
) -> None:
    config, losses = replace(CONFIG, model=model, data=str(short_text)), []
    for leg, (ranks, plan) in enumerate(LEGS):
        saves = Saves(tmp_path / "run", 2, resume=leg > 0, **WAYS[way])
        part = replace(config, stop_after=3 * (leg + 1))
        clusters(ranks).run(on_rank.train, part, tmp_path / str(leg), plan, saves)
        losses += [step.loss for step in read_log(tmp_path / str(leg))[0]]
    assert len(losses) == 9
    assert losses == pytest.approx(one_process(config).losses, rel=EXACT)


def test_the_scale_of_the_loss_continues(clusters: Clusters, short_text: Path, tmp_path: Path) -> None:
    """In fp16 it is halved where a gradient overflows: that is not found out again by every run that resumes."""
    config = replace(CONFIG, data=str(short_text), precision=PRECISIONS["fp16"])

    def scale(saves: Saves, first: float | None) -> tuple[float, int]:
        training = Training(config, dist.group.WORLD, torch.device("cpu"), Plan(DataParallelism.ZERO1))
        assert isinstance(training.scaler, LossScaler)
        if first is None:
            saves.begin(training)
        else:
            training.scaler.factor, training.scaler.good_steps = first, 7
            saves.save(training, 1)
        return training.scaler.factor, training.scaler.good_steps

    clusters(4).run(scale, Saves(tmp_path), 64.0)
    assert clusters(3).run(scale, Saves(tmp_path, resume=True), None) == [(64.0, 7)] * 3
