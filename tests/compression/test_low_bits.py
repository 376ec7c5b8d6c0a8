"""Linear layers of 8-bit numbers: under every plan what one process learns, and near what more bits learn."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rankwise import on_rank
from reference.choices import LinearNumbers
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import PRESETS
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan

Clusters = Callable[..., Cluster]
FORMS = DataParallelism
CONFIG = TrainConfig(
    PRESETS["tiny"], steps=3, batch=8, sequence=16, warmup=2, precision=PRECISIONS["fp64"], linear=LinearNumbers.FP8
)
EXACT = 1e-9
PLANS = {
    "ddp": Plan(FORMS.DDP),
    "fsdp": Plan(FORMS.FSDP),
    "tp": Plan(tensor_parallel=4),
    "fsdp, sp": Plan(FORMS.FSDP, tensor_parallel=2, sequence_parallel=True),
    "async": Plan(tensor_parallel=2, sequence_parallel=True, async_tensor_parallel=True),
    "zero bubble": Plan(FORMS.ZERO1, pipeline_parallel=2, micro_batches=2, schedule=PipelineSchedule.ZB_H1),
    "pipeline, tp": Plan(pipeline_parallel=2, micro_batches=2, tensor_parallel=2),
}


@pytest.mark.parametrize("linear", [LinearNumbers.FP8, LinearNumbers.INT8])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_any_plan_learns_what_one_process_learns(clusters: Clusters, plan: Plan, linear: LinearNumbers) -> None:
    config = replace(CONFIG, linear=linear)
    difference = largest_difference(clusters(4).run(on_rank.record, config, plan)[0], one_process(config))
    assert max(difference.values()) < EXACT, difference
