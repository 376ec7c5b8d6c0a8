"""With dropout, too, every layout gives what one process gives: each token drops the same, wherever it is computed."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from rankwise import on_rank
from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import PRESETS, GPTConfig
from reference.models.data import Batches
from reference.oracle import Record, largest_difference, on_ranks, one_process
from reference.parallelize import DataParallelism, Plan
from reference.train import TrainConfig, Training, validation_loss

Clusters = Callable[..., Cluster]
TIED = replace(PRESETS["tiny"], dropout=0.2)
UNTIED = GPTConfig(layers=2, width=48, heads=4, kv_heads=2, hidden=40, dropout=0.5)
CONFIG = TrainConfig(TIED, steps=4, batch=8, sequence=8, warmup=2, seed=3, precision=PRECISIONS["fp64"])
EXACT = 1e-10  # the order of additions costs 1e-15; an element that only one of the two drops costs more than 1e-3
SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}

LAYOUTS = [
    (1, Plan(micro_batches=4)),
    (4, Plan(micro_batches=2)),
    (4, Plan(DataParallelism.DDP, micro_batches=2, recompute=Recompute.FULL)),
    (4, Plan(DataParallelism.ZERO2, recompute=Recompute.SELECTIVE)),
    (4, Plan(DataParallelism.FSDP, micro_batches=2, recompute=Recompute.FULL)),
    (2, Plan(tensor_parallel=2)),
    (4, Plan(tensor_parallel=4, sequence_parallel=True)),
    (4, Plan(DataParallelism.DDP, micro_batches=2, recompute=Recompute.SELECTIVE, **SEQUENCE)),
    (4, Plan(DataParallelism.FSDP, micro_batches=2, recompute=Recompute.FULL, **SEQUENCE)),
]


@lru_cache
def oracle(model: GPTConfig) -> Record:
    return one_process(replace(CONFIG, model=model))


def described(value: object) -> str:
    if not isinstance(value, Plan):
        return str(value)
    words = [
        value.data_parallel,
        f"{value.micro_batches} micro-batches",
        value.recompute,
        f"tensor {value.tensor_parallel}",
    ]
    return ", ".join(words + ["sequence"] * value.sequence_parallel)


@pytest.mark.turns(5)
@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("ranks, plan", LAYOUTS, ids=described)
def test_any_layout_drops_what_one_process_drops(clusters: Clusters, ranks: int, plan: Plan, model: GPTConfig):
    cluster = clusters(ranks)
    for record in cluster.run(on_rank.record, replace(CONFIG, model=model), plan):
        difference = largest_difference(record, oracle(model))
        assert max(difference.values()) < EXACT, difference


def test_dropout_is_seen_in_what_is_learned():
    without = one_process(replace(CONFIG, model=replace(TIED, dropout=0.0)))
    assert largest_difference(without, oracle(TIED))["gradients"] > 1e-3


def test_a_rank_that_drops_by_the_noise_of_another_is_seen(clusters: Clusters):
    def record() -> Record:
        seeds = Batches.dropout_seeds
        with patch.object(Batches, "dropout_seeds", lambda batches, step, rank, ranks: seeds(batches, step, 0, ranks)):
            return on_ranks(CONFIG, dist.group.WORLD)

    assert largest_difference(clusters(2).run(record)[0], oracle(TIED))["gradients"] > 1e-3


def test_validation_drops_nothing(clusters: Clusters, short_text: Path):
    def untrained(p: float) -> float:
        config = replace(CONFIG, data=str(short_text), model=replace(TIED, dropout=p))
        return validation_loss(Training(config, dist.group.WORLD, torch.device("cpu")))

    assert clusters(2).run(untrained, 0.5) == clusters(2).run(untrained, 0.0)
