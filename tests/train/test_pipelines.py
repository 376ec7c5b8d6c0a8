"""Pipelines, with data and tensor parallelism across them: any plan gives what one process gives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.fast.fused import LARGE
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.oracle import one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.saves import Saves
from reference.train import TrainConfig, Training, train, validation_loss

from ..data_parallel.traffic import cut
from ..parity.deal import EXACT, SHAPE, Deal, differences

Clusters = Callable[..., Cluster]


WIDE = GPTConfig(layers=2, width=256, heads=4, kv_heads=4, hidden=256)
"""Each matrix of a block is large enough for its gradient to be added up in the product."""


@pytest.mark.parametrize("form", DataParallelism)
def test_products_that_add_equal_one_process(clusters: Clusters, form: DataParallelism) -> None:
    assert WIDE.width * WIDE.hidden >= LARGE
    config = TrainConfig(WIDE, steps=2, batch=6, sequence=8, warmup=1, precision=PRECISIONS["fp64"])
    plan = Plan(form, 3, pipeline_parallel=2, dp_replicate=2 if form is DataParallelism.HSDP else None)
    found = differences(Deal(4, config, plan), clusters(4))
    assert max(found.values()) < EXACT, found


CONFIG = TrainConfig(GPTConfig(**SHAPE), steps=6, batch=8, sequence=8, warmup=2, precision=PRECISIONS["fp64"])


def trained(config: TrainConfig, plan: Plan, saves: Saves) -> tuple[list[float], float]:
    """Losses of the steps that were taken, and of the held-out text."""
    losses: list[float] = []
    training = train(config, dist.group.WORLD, torch.device("cpu"), plan, lambda step: losses.append(step.loss), saves)
    return losses, validation_loss(training)


def test_a_run_goes_on_with_other_numbers_on_all_axes(clusters: Clusters, short_text: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, data=str(short_text))
    whole = one_process(config)
    legs = (
        (8, Plan(DataParallelism.ZERO1, 2, tensor_parallel=2, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1)),
        (4, Plan(DataParallelism.FLAT, 4, pipeline_parallel=4, schedule=PipelineSchedule.INTERLEAVED)),
        (2, Plan(DataParallelism.FSDP, tensor_parallel=1)),
    )
    losses, held_out = [], []
    for number, (ranks, plan) in enumerate(legs):
        leg = replace(config, stop_after=2 * (number + 1))
        saves = Saves(tmp_path, every=2, resume=number > 0)
        found, loss = clusters(ranks).run(trained, leg, plan, saves)[0]
        losses += found
        held_out.append(loss)
    assert losses == pytest.approx(whole.losses, rel=1e-12)
    assert held_out[0] > held_out[1] > held_out[2]


def held_out(config: TrainConfig, plan: Plan) -> list[float]:
    """Loss of the held-out text before a step, and after it."""
    training, losses = Training(config, dist.group.WORLD, torch.device("cpu"), plan), []
    for step in range(2):
        losses.append(validation_loss(training))
        training.backward(step)
        training.update(step)
    return losses


@pytest.mark.parametrize(
    "form", [DataParallelism.DDP, DataParallelism.ZERO2, DataParallelism.FSDP, DataParallelism.HSDP]
)
def test_inference_goes_through_the_same_stages(clusters: Clusters, short_text: Path, form: DataParallelism) -> None:
    """Whatever order training has; two stages on a rank hand over without a message where they follow each other."""
    config = replace(CONFIG, data=str(short_text))
    (expected,) = clusters(1).run(held_out, config, Plan())
    plan = Plan(form, 2, pipeline_parallel=2, schedule=PipelineSchedule.ZB_V)
    for found in clusters(4).run(held_out, config, plan):
        assert found == pytest.approx(expected, rel=1e-12)


def read_twice(config: TrainConfig) -> None:
    """Held-out text, in two pieces of 8 windows and one of 3."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), Plan(pipeline_parallel=2))
    for _ in range(2):
        validation_loss(training)
        dist.barrier()


def test_inference_tells_each_shape_once(clusters: Clusters, short_text: Path) -> None:
    config = replace(CONFIG, data=str(short_text), sequence=100)
    first, second = cut(clusters(2).trace(read_twice, config)[1])
    assert len(first.messages) - len(second.messages) == 2


@pytest.mark.parametrize(
    ("plan", "ranks", "said"),
    [
        (Plan(pipeline_parallel=3), 4, "4 ranks do not divide into pipelines of 3"),
        (
            Plan(pipeline_parallel=8, schedule=PipelineSchedule.ZB_V),
            8,
            "8 layers do not make 16 stages, as zb-v has on 8 ranks",
        ),
        (Plan(pipeline_parallel=2, tensor_parallel=3), 6, "4 heads do not divide among 3 tensor-parallel ranks"),
        (Plan(pipeline_parallel=2, tensor_parallel=4), 4, "4 ranks do not divide .*: take a multiple of 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(plan: Plan, ranks: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        plan.require_fit(ranks, GPTConfig(**SHAPE))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"schedule": PipelineSchedule.GPIPE},
            "gpipe is a schedule of pipelines: it takes pipeline parallelism of 2 or more",
        ),
        ({"pipeline_parallel": 0}, "a pipeline has 1 rank or more, not 0"),
        (
            {"pipeline_parallel": 2, "schedule": PipelineSchedule.INTERLEAVED, "stages_per_rank": 0},
            "a rank has 1 stage or more, not 0",
        ),
        (
            {"pipeline_parallel": 2, "stages_per_rank": 2},
            "stages per rank are of interleaved and breadth-first, not of 1f1b",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Plan(**options)
