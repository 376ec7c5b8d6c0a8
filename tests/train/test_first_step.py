"""The first step on GPUs, shown on CPUs: nothing in it is used for the first time while messages are under way.

`reference.on_gpus.is_gpu` is made to say yes of CPUs. All that a GPU asks is then done on gloo: a group for each
channel, each group used once, each kernel used once, sums that travel during backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reference import on_gpus
from reference.cluster import Cluster
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import Record, largest_difference, on_ranks
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.trace import Op
from reference.train import TrainConfig, Training, validation_loss

from ..parity.deal import EXACT, SHAPE, alone_as, dealt

Clusters = Callable[..., Cluster]
CPU = torch.device("cpu")


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Heed all that GPUs ask."""
    before, on_gpus.is_gpu = on_gpus.is_gpu, lambda device: True
    try:
        yield
    finally:
        on_gpus.is_gpu = before


def record(config: TrainConfig, plan: Plan) -> Record:
    """What a training on the world has, as on GPUs."""
    with as_on_gpus():
        return on_ranks(config, dist.group.WORLD, CPU, plan)


@pytest.mark.turns(6)
@pytest.mark.parametrize("number", range(17))
def test_plans_equal_one_process_as_they_run_on_gpus(clusters: Clusters, number: int) -> None:
    """Each schedule. What warms up leaves nothing behind: not a bit of a gradient."""
    deal = dealt(number, seed=1, precision="fp64")
    first, *others = clusters(deal.ranks).run(record, deal.config, deal.plan)
    found = largest_difference(first, alone_as(deal))
    found["ranks"] = 0.0 if all(other.losses == first.losses for other in others) else inf
    assert max(found.values()) < EXACT, (deal, found)


class Kernels(TorchDispatchMode):
    """What a GPU would have to load: operations, with the shapes and dtypes of their tensors. Views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        forms = [
            (tuple(x.shape), str(x.dtype)) for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)
        ]
        if op.namespace == "aten" and forms and not (op.is_view or op is torch.ops.aten.lift_fresh.default):
            self.seen.add(f"{op} {forms}")
        return op(*args, **(kwargs or {}))


def new_in_a_step(config: TrainConfig, plan: Plan, warm: bool) -> set[str]:
    """What this rank computes in its first step, and has not computed before it."""
    with as_on_gpus():
        with Kernels() as before:
            training = Training(config, dist.group.WORLD, CPU, plan)
        with Kernels() as step:
            training.backward(0)
    return step.seen - (before.seen if warm else set())


PLANS = {
    "1f1b": Plan(DataParallelism.DDP, 4, pipeline_parallel=2),
    "two halves": Plan(DataParallelism.ZERO2, 4, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1),
    "there and back": Plan(
        DataParallelism.FSDP, 4, Recompute.FULL, pipeline_parallel=2, schedule=PipelineSchedule.ZB_V
    ),
    "whole and in halves": Plan(DataParallelism.FLAT, 4, pipeline_parallel=2, schedule=PipelineSchedule.DUAL_PIPE_V),
    "slices": Plan(
        DataParallelism.ZERO1,
        4,
        pipeline_parallel=2,
        tensor_parallel=2,
        sequence_parallel=True,
        schedule=PipelineSchedule.INTERLEAVED,
    ),
}
TASK = TrainConfig(GPTConfig(**SHAPE, dropout=0.1), batch=8, sequence=8, precision=PRECISIONS["bf16"])


@pytest.mark.parametrize("name", PLANS)
def test_a_step_computes_nothing_that_was_not_warmed_up(clusters: Clusters, name: str) -> None:
    cluster = clusters(4)
    assert cluster.run(new_in_a_step, TASK, PLANS[name], True) == [set()] * 4
    assert all(len(all_of_it) > 50 for all_of_it in cluster.run(new_in_a_step, TASK, PLANS[name], False))


def groups_of(config: TrainConfig, plan: Plan) -> float:
    """Make a training as on GPUs; after a barrier take a step, and read some text."""
    with as_on_gpus():
        training = Training(config, dist.group.WORLD, CPU, plan)
        dist.barrier()
        training.backward(0)
        training.update(0)
        return validation_loss(training)


AXES = {
    "all axes": Plan(DataParallelism.HSDP, 2, pipeline_parallel=2, tensor_parallel=2, dp_replicate=2),
    "tied ends": Plan(DataParallelism.DDP, 4, pipeline_parallel=4, tensor_parallel=2),
    "copies of heads": Plan(DataParallelism.ZERO1, tensor_parallel=4, sequence_parallel=True),
    "data alone": Plan(DataParallelism.FSDP),
}


@pytest.mark.parametrize("name", AXES)
def test_every_group_of_a_step_has_been_used_before_it(clusters: Clusters, name: str, short_text: Path) -> None:
    """Communicators are made where nothing waits, on all ranks in one order."""
    config = replace(TASK, data=str(short_text), model=GPTConfig(**SHAPE, tied=True))
    _, trace = clusters(8).trace(groups_of, config, AXES[name])
    for events in trace.events:
        (begins,) = [at for at, event in enumerate(events) if event.op is Op.BARRIER]
        used = [{(event.group, event.group_name) for event in part} for part in (events[:begins], events[begins + 1 :])]
        assert set() < used[1] <= used[0]


def test_a_group_that_nobody_connects_is_found(clusters: Clusters) -> None:
    """The test above fails where a group is first used in a step: as all are where nothing is connected."""
    _, trace = clusters(2).trace(unconnected, replace(TASK, batch=4), Plan(pipeline_parallel=2))
    for events in trace.events:
        (begins,) = [at for at, event in enumerate(events) if event.op is Op.BARRIER]
        assert events[begins + 1 :] and not events[:begins]


def unconnected(config: TrainConfig, plan: Plan) -> None:
    """As on CPUs."""
    training = Training(config, dist.group.WORLD, CPU, plan)
    dist.barrier()
    training.backward(0)
    training.update(0)


def refused(config: TrainConfig, plan: Plan) -> str:
    """What is said where CUDA has one connection."""
    import os

    os.environ[on_gpus.CONNECTIONS] = "1"
    try:
        record(config, plan)
    except BadInput as error:
        return str(error)
    finally:
        del os.environ[on_gpus.CONNECTIONS]
    return ""


def test_a_pipeline_with_too_few_connections_is_refused_by_every_rank(clusters: Clusters) -> None:
    said = clusters(4).run(refused, TASK, Plan(micro_batches=2, pipeline_parallel=4))
    assert set(said) == {said[0]} and "CONNECTIONS is 1, and a rank of this pipeline takes 8 connections" in said[0]
    assert clusters(4).run(refused, TASK, Plan(DataParallelism.DDP)) == [""] * 4
