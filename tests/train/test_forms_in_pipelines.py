"""What data parallelism sends and keeps in a pipeline: gradients of each stage once, parameters as they are needed."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.composition.lab.by_axis import bytes_by_axis
from reference.memory.precision import PRECISIONS
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.pipeline_parallel.passes import Free, Gather, Reduce, brings_gradients
from reference.trace import Op, Trace
from reference.train import TrainConfig, Training

Clusters = Callable[..., Cluster]
MESH = Mesh({"pipe": 2, "data": 2})
DOUBLE = 8  # bytes
MODEL = GPTConfig(layers=8, width=16, heads=4, kv_heads=2, hidden=24)
PIPES = {  # order, stages on a rank where it leaves that open, micro-batches
    "1F1B": (PipelineSchedule.ONE_F_ONE_B, None, 4),
    "split backward": (PipelineSchedule.ZB_H1, None, 4),
    "there and back": (PipelineSchedule.ZB_V, None, 6),
    "interleaved": (PipelineSchedule.INTERLEAVED, 4, 6),
    "breadth-first": (PipelineSchedule.BREADTH_FIRST, 4, 4),
}
piped = pytest.mark.parametrize("pipe", PIPES)


def plan_of(form: DataParallelism, pipe: str) -> Plan:
    order, chunks, m = PIPES[pipe]
    return Plan(form, m, pipeline_parallel=2, schedule=order, stages_per_rank=chunks)


def third_step(plan: Plan) -> tuple[dict[int, int], list[tuple[str, int]], int]:
    """Take two steps, and after a barrier a third.

    Returns:
        Elements of each of this rank's stages; what the program gathers, frees and reduces; bytes of parameters that
        are left when the step is over.
    """
    config = TrainConfig(MODEL, batch=2 * plan.micro_batches, sequence=8, precision=PRECISIONS["fp64"])
    training = Training(config, dist.group.WORLD, torch.device("cpu"), plan)
    sizes = {number: sum(p.numel() for p in stage.parameters()) for number, stage in training.model.by_number.items()}
    for step in range(3):
        if step == 2:
            dist.barrier()
        training.backward(step)
        training.form.end_step()
    dist.barrier()
    memory = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in training.model.parameters()}
    left = sum(memory.values())
    return sizes, reductions_and_gathers(training.engine.line), left


def reductions_and_gathers(line: list) -> list[tuple[str, int]]:
    """What a form is asked for, in order: gradients leave when they are complete, or when their stage is freed."""
    found, waiting = [], set()
    for step in line:
        if isinstance(step, Gather):
            found.append(("gather", step.stage))
        elif isinstance(step, Reduce):
            found.append(("reduce", step.action.stage))
            waiting.discard(step.action.stage)
        elif isinstance(step, Free) and step.stage in waiting:
            found.append(("reduce", step.stage))
            waiting.discard(step.stage)
        elif brings_gradients(step):
            waiting.add(step.stage)
    return found


def sent(trace: Trace) -> list[int]:
    """Bytes of the last step that each rank sent along the data axis."""
    last = []
    for events in trace.events:
        begin, end = (at for at, event in enumerate(events) if event.op is Op.BARRIER)
        last.append(events[begin + 1 : end])
    return bytes_by_axis(Trace(trace.world_size, tuple(map(tuple, last))), MESH)["data"]


@pytest.mark.turns(4)
@piped
@pytest.mark.parametrize("form", [DataParallelism.FLAT, DataParallelism.DDP, DataParallelism.ZERO1])
def test_gradients_are_sent_once_a_step_however_many_micro_batches(
    clusters: Clusters, form: DataParallelism, pipe: str
) -> None:
    """2Ψ(d-1)/d elements, of the parameters of a rank's stages; ZeRO-1 sends half of it when it publishes."""
    results, trace = clusters(4).trace(third_step, plan_of(form, pipe))
    assert sent(trace) == [sum(sizes.values()) * DOUBLE for sizes, _, _ in results]


@piped
def test_zero_2_sends_the_gradients_of_every_micro_batch(clusters: Clusters, pipe: str) -> None:
    """It has no room for what has not been sent: (m + 1)Ψ(d-1)/d elements."""
    m = PIPES[pipe][-1]
    results, trace = clusters(4).trace(third_step, plan_of(DataParallelism.ZERO2, pipe))
    assert sent(trace) == [(m + 1) * sum(sizes.values()) * DOUBLE // 2 for sizes, _, _ in results]


@piped
def test_fsdp_gathers_and_reduces_stages_when_the_program_says_so(clusters: Clusters, pipe: str) -> None:
    """So many passes over a stage, each of Ψ(d-1)/d elements. Afterwards nothing is left but shards."""
    results, trace = clusters(4).trace(third_step, plan_of(DataParallelism.FSDP, pipe))
    assert sent(trace) == [sum(sizes[stage] for _, stage in asked) * DOUBLE // 2 for sizes, asked, _ in results]
    for _, _, left in results:
        assert left == 0


def test_breadth_first_needs_fewer_messages_than_interleaving(clusters: Clusters) -> None:
    """Lamy-Poirier 2023: the price of FSDP does not grow with the number of micro-batches."""
    asked = {}
    for order in (PipelineSchedule.INTERLEAVED, PipelineSchedule.BREADTH_FIRST):
        for m in (4, 8):
            plan = Plan(DataParallelism.FSDP, m, pipeline_parallel=2, schedule=order, stages_per_rank=4)
            asked[order, m] = len(clusters(4).run(third_step, plan)[0][1])
    assert asked[PipelineSchedule.BREADTH_FIRST, 4] == asked[PipelineSchedule.BREADTH_FIRST, 8]
    assert (
        asked[PipelineSchedule.BREADTH_FIRST, 4]
        < asked[PipelineSchedule.INTERLEAVED, 4]
        < asked[PipelineSchedule.INTERLEAVED, 8]
    )
