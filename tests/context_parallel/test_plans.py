"""Ranks that share windows train what one process trains, beside every other axis."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from rankwise import on_rank
from reference.choices import ContextLayout, ContextMethod
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.train import Training, validation_loss

EXACT = 1e-10
MODEL = GPTConfig(layers=2, width=16, heads=4, kv_heads=2, hidden=24, dropout=0.1)
CONFIG = TrainConfig(MODEL, steps=3, batch=4, sequence=24, warmup=1, precision=PRECISIONS["fp64"])

Clusters = Callable[..., Cluster]


def difference(clusters: Clusters, ranks: int, plan: Plan, config: TrainConfig = CONFIG) -> dict[str, float]:
    """To one process."""
    records = clusters(ranks).run(on_rank.record, config, plan)
    return largest_difference(records[0], one_process(config))


@pytest.mark.parametrize(("method", "kind"), list(itertools.product(ContextMethod, ContextLayout)))
def test_every_method_and_layout_trains_the_same(
    clusters: Clusters, method: ContextMethod, kind: ContextLayout
) -> None:
    plan = Plan(context_parallel=4, context_method=method, context_layout=kind)
    assert max(difference(clusters, 4, plan).values()) < EXACT


@pytest.mark.parametrize("sequence", [1, 2, 5, 21])
@pytest.mark.parametrize("method", ContextMethod)
def test_windows_that_do_not_divide_are_padded(clusters: Clusters, method: ContextMethod, sequence: int) -> None:
    """With one token, three ranks of four hold padding alone, and no target that counts."""
    plan = Plan(context_parallel=4, context_method=method)
    assert max(difference(clusters, 4, plan, replace(CONFIG, sequence=sequence)).values()) < EXACT


PLANS = {
    "FSDP over both": (8, Plan(DataParallelism.FSDP, context_parallel=4)),
    "HSDP": (8, Plan(DataParallelism.HSDP, dp_replicate=2, context_parallel=2)),
    "DDP": (8, Plan(DataParallelism.DDP, context_parallel=2, context_method=ContextMethod.ULYSSES)),
    "ZeRO-2": (4, Plan(DataParallelism.ZERO2, context_parallel=2, micro_batches=2)),
    "tensor parallel": (4, Plan(context_parallel=2, tensor_parallel=2)),
    "sequence parallel": (8, Plan(context_parallel=4, tensor_parallel=2, sequence_parallel=True)),
    "pipeline": (
        8,
        Plan(context_parallel=2, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1, micro_batches=2),
    ),
    "recomputed": (2, Plan(context_parallel=2, recompute=Recompute.FULL)),
    "recomputed, all-gather": (
        2,
        Plan(context_parallel=2, recompute=Recompute.SELECTIVE, context_method=ContextMethod.ALL_GATHER),
    ),
    "four axes": (
        8,
        Plan(
            DataParallelism.FSDP,
            context_parallel=2,
            tensor_parallel=2,
            sequence_parallel=True,
            pipeline_parallel=2,
            micro_batches=2,
        ),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_beside_other_axes(clusters: Clusters, name: str) -> None:
    ranks, plan = PLANS[name]
    assert max(difference(clusters, ranks, plan, replace(CONFIG, sequence=21)).values()) < EXACT


def validated(config: TrainConfig, plan: Plan) -> float:
    """Of a model that has not learned yet."""
    import torch
    import torch.distributed as dist

    return validation_loss(Training(config, dist.group.WORLD, torch.device("cpu"), plan))


@pytest.mark.parametrize("plan", [Plan(context_parallel=4), Plan(context_parallel=2, pipeline_parallel=2)])
def test_the_validation_loss_is_that_of_one_process(clusters: Clusters, plan: Plan) -> None:
    config = replace(CONFIG, sequence=21)
    alone = clusters(1).run(validated, config, Plan())
    found = clusters(4).run(validated, config, plan)
    assert all(abs(one - alone[0]) < EXACT * alone[0] for one in found)


@pytest.mark.parametrize(
    ("plan", "ranks", "says"),
    [
        (lambda: Plan(context_parallel=0), 1, "at least 1 rank"),
        (lambda: Plan(context_method=ContextMethod.ULYSSES), 1, "context parallelism of 2 or more"),
        (lambda: Plan(context_parallel=4, context_neighbours=2), 4, "not in ring"),
        (lambda: Plan(context_parallel=4, context_method=ContextMethod.USP, context_neighbours=3), 4, "families of 3"),
        (lambda: Plan(context_parallel=8, context_method=ContextMethod.ULYSSES), 8, "4 heads of queries"),
        (lambda: Plan(context_parallel=3), 4, "take a multiple of 3"),
    ],
)
def test_what_does_not_fit_is_refused(plan: Callable[[], Plan], ranks: int, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        plan().require_fit(ranks, MODEL, 24)
