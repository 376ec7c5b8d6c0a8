"""Muon and its like under every plan: what one process learns, from matrices that no rank has whole."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rankwise import on_rank
from reference.choices import Optimizer
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan

Clusters = Callable[..., Cluster]
CONFIG = TrainConfig(
    PRESETS["tiny"],
    steps=3,
    batch=8,
    sequence=16,
    warmup=2,
    precision=PRECISIONS["fp64"],
    optimizer=Optimizer.MUON,
)
EXACT = 1e-9
FORMS = DataParallelism
PLANS = [
    (3, Plan(FORMS.FLAT)),
    (4, Plan(FORMS.DDP)),
    (4, Plan(FORMS.ZERO1)),
    (4, Plan(FORMS.ZERO2, micro_batches=2)),
    (4, Plan(FORMS.FSDP)),
    (4, Plan(FORMS.HSDP)),
    (4, Plan(tensor_parallel=4)),
    (4, Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True)),
    (4, Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2)),
    (4, Plan(FORMS.FSDP, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1)),
    (4, Plan(FORMS.FSDP, context_parallel=2)),
]


@pytest.mark.parametrize(("ranks", "plan"), PLANS, ids=lambda x: "" if isinstance(x, int) else x.data_parallel)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, ranks: int, plan: Plan) -> None:
    batch = 12 if ranks == 3 else 8
    config = replace(CONFIG, batch=batch)
    difference = largest_difference(clusters(ranks).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference
