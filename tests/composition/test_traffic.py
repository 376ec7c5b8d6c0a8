"""What talks to what: traces of real steps say what the formulas say, axis by axis and rank by rank, to the byte."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives import all_gather, reduce_scatter
from reference.collectives import cost as collectives
from reference.collectives.fast import select
from reference.composition.lab.by_axis import SEVERAL, bytes_by_axis, matrices_by_axis
from reference.composition.lab.reorder import reordered
from reference.composition.traffic import StepShape, Traffic, along_data, along_pipe, along_tensor, traffic_per_step
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.models.config import LINEAR
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.pipeline_parallel.stages import pieces_of
from reference.trace import Link, Network, Op, Trace
from reference.train import TrainConfig, Training

from ..data_parallel.traffic import cut

DOUBLE = 8  # bytes
MODEL = GPTConfig(layers=8, width=16, heads=4, kv_heads=4, hidden=24)
SEQUENCE, WINDOWS = 8, 2


def plan_of(
    p: int, t: int, m: int, order: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B, slices: bool = False
) -> Plan:
    return Plan(
        DataParallelism.FLAT, m, tensor_parallel=t, sequence_parallel=slices, pipeline_parallel=p, schedule=order
    )


CASES: dict[str, tuple[GPTConfig, Plan]] = {
    "2 x 2 x 2": (MODEL, plan_of(2, 2, 4)),
    "whole activations": (MODEL, replace(plan_of(2, 2, 4), scatter_gather=False)),
    "slices": (MODEL, plan_of(2, 2, 4, slices=True)),
    "deep": (MODEL, plan_of(4, 2, 6)),
    "one micro-batch": (MODEL, plan_of(4, 1, 1)),
    "wide": (MODEL, plan_of(2, 4, 2)),
    "interleaved": (MODEL, plan_of(2, 2, 4, PipelineSchedule.INTERLEAVED)),
    "folded back": (MODEL, plan_of(4, 1, 4, PipelineSchedule.ZB_V)),
    "tied": (replace(MODEL, tied=True), plan_of(2, 2, 2)),
    "few key-value heads": (replace(MODEL, kv_heads=2), plan_of(2, 4, 2, slices=True)),
    "biases": (replace(MODEL, kv_heads=2, biases=LINEAR, head_size=6), plan_of(2, 4, 2, slices=True)),
    "no gate": (replace(MODEL, gated=False, biases=("key", "up")), plan_of(2, 2, 2)),
    "many replicas": (MODEL, plan_of(2, 1, 2)),
}


def mesh_of(plan: Plan, ranks: int = 8) -> Mesh:
    p, t = plan.pipeline_parallel, plan.tensor_parallel
    return Mesh({"pipe": p, "data": ranks // p // t, "tensor": t})


def work_of(config: GPTConfig, plan: Plan) -> StepShape:
    schedule = plan.timetable()
    pieces = pieces_of(config, schedule.stages)
    slices, parts = plan.sequence_parallel, plan.scatter_gather
    return StepShape(config, mesh_of(plan), schedule, pieces, WINDOWS, SEQUENCE, slices, parts)


def second_steps(cases: Sequence[tuple[GPTConfig, Plan]]) -> None:
    """Of every case a step that tells shapes, a barrier, a step that doesn't, and a barrier."""
    for config, plan in cases:
        d = mesh_of(plan).size("data")
        task = TrainConfig(
            config, batch=d * plan.micro_batches * WINDOWS, sequence=SEQUENCE, precision=PRECISIONS["fp64"]
        )
        training = Training(task, dist.group.WORLD, torch.device("cpu"), plan)
        for step in range(2):
            training.backward(step)
            training.form.end_step()
            dist.barrier()


@pytest.fixture(scope="module")
def traces(clusters: Callable[..., Cluster]) -> Iterator[dict[str, Trace]]:
    """A step of each case on eight ranks."""
    trace = clusters(8, preload=("torch._dynamo",)).trace(second_steps, list(CASES.values()))[1]
    yield dict(zip(CASES, cut(trace)[1::2], strict=True))


def by_hand(sent: Traffic) -> int:
    """Elements that a rank sends with the algorithms that suit small tensors between processes of one machine.

    The flat form of data parallelism calls the backend's own, which a trace counts as a ring.
    """
    if sent.op is Op.SEND or sent.axis == "data":
        return sent.elements
    reductions = select.cheapest(select.ALL_REDUCES, sent.ranks, sent.numel, DOUBLE)
    algorithm = {
        Op.ALL_REDUCE: reductions,
        Op.ALL_GATHER: all_gather.recursive_doubling,
        Op.REDUCE_SCATTER: reduce_scatter.recursive_halving,
    }[sent.op]
    return sent.times * collectives.of(algorithm).elements(sent.place, sent.ranks, sent.numel)


@pytest.mark.parametrize("case", CASES)
def test_every_rank_sends_along_every_axis_what_the_formulas_say(case: str, traces: dict[str, Trace]) -> None:
    work, trace = work_of(*CASES[case]), traces[case]
    assert not trace.unmatched
    found = bytes_by_axis(trace, work.mesh)
    assert SEVERAL not in found, "messages keep to one axis"
    for rank in work.mesh.ranks:
        expected = dict.fromkeys(work.mesh.names, 0)
        for sent in traffic_per_step(work, rank):
            expected[sent.axis] += DOUBLE * by_hand(sent)
        assert {axis: sent[rank] for axis, sent in found.items()} == expected, rank


def test_two_ranks_on_an_axis_send_the_same_around_a_ring_and_by_hand() -> None:
    """So a mesh of 2 x 2 x 2 is where the formulas of the paper and the bytes of a laptop are the same numbers."""
    for rank in range(8):
        for sent in traffic_per_step(work_of(*CASES["2 x 2 x 2"]), rank):
            assert sent.elements == by_hand(sent)


def test_every_byte_goes_along_an_axis(traces: dict[str, Trace]) -> None:
    trace, mesh = traces["2 x 2 x 2"], mesh_of(CASES["2 x 2 x 2"][1])
    assert sum(matrices_by_axis(trace, mesh).values()).sum(axis=1).tolist() == list(trace.bytes_sent)


def test_in_another_order_every_rank_sends_the_same_from_another_place(traces: dict[str, Trace]) -> None:
    trace, mesh = traces["2 x 2 x 2"], mesh_of(CASES["2 x 2 x 2"][1])
    inside_out = Mesh({"tensor": 2, "data": 2, "pipe": 2})
    moved = reordered(trace, mesh, inside_out.names)
    before, after = bytes_by_axis(trace, mesh), bytes_by_axis(moved, inside_out)
    for axis in mesh.names:
        assert [after[axis][inside_out.rank(**mesh.coordinates(rank))] for rank in mesh.ranks] == before[axis]
    assert (moved.steps, len(moved.messages)) == (trace.steps, len(trace.messages))


def test_on_two_nodes_the_order_of_axes_decides_how_long_messages_take(traces: dict[str, Trace]) -> None:
    """Tensor parallelism between nodes: most bytes on the slowest links."""
    trace, mesh = traces["2 x 2 x 2"], mesh_of(CASES["2 x 2 x 2"][1])
    slow = Network(Link("fast", 0.0, 1e9), Link("slow", 0.0, 1e7), ranks_per_node=4)
    inside, outside = (
        reordered(trace, mesh, order).replay(slow).duration
        for order in (("pipe", "data", "tensor"), ("tensor", "data", "pipe"))
    )
    assert inside < outside / 5
    with pytest.raises(BadInput, match="no axis 'data'"):
        reordered(trace, mesh, ("pipe", "tensor"))


def test_a_message_to_nobody_in_particular_is_of_several_axes(clusters: Callable[..., Cluster]) -> None:
    """An all-reduce of all ranks goes around the corner of the mesh."""
    trace = clusters(8, preload=("torch._dynamo",)).trace(lambda: dist.all_reduce(torch.ones(8)))[1]
    assert sum(bytes_by_axis(trace, Mesh({"pipe": 2, "data": 2, "tensor": 2}))[SEVERAL]) > 0


def test_the_tensor_axis_says_eight_times_the_stream_for_each_layer() -> None:
    """8 b s h (t-1)/t (PTD-P, sec. 3.2): what four more layers on each of two stages add."""
    plan = plan_of(2, 4, 3)
    more, less = (work_of(replace(MODEL, layers=layers), plan) for layers in (16, 8))
    stream = WINDOWS * SEQUENCE * MODEL.width
    for rank in range(8):
        added = sum(one.elements for one in along_tensor(more, rank)) - sum(
            t.elements for t in along_tensor(less, rank)
        )
        assert added == 3 * 4 * 8 * stream * 3 // 4


def test_the_pipe_says_the_stream_once_each_way_for_each_micro_batch() -> None:
    """b s h (PTD-P, sec. 3.2); the first rank sends nothing back, and the last nothing on."""
    plan, stream = plan_of(4, 1, 6), WINDOWS * SEQUENCE * MODEL.width
    sent = [along_pipe(work_of(MODEL, plan), rank)[0].elements for rank in (0, 2, 4, 6)]
    assert sent == [6 * stream, 12 * stream, 12 * stream, 6 * stream]


def test_v_chunks_make_a_rank_say_it_v_times() -> None:
    """PTD-P, sec. 2.2.2: the price of a smaller bubble. What was the end of the ring is now in the middle of it."""
    straight, twice = (
        sum(along_pipe(work_of(MODEL, plan_of(4, 1, 4, order)), rank)[0].elements for rank in (0, 2, 4, 6))
        for order in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED)
    )
    assert twice * 3 == straight * 7, "borders between stages: 7 of 8, where there were 3 of 4"


def test_parts_travel_along_the_pipe_and_are_gathered_along_the_tensor_axis() -> None:
    """Scatter/gather (PTD-P, sec. 4.1): fewer bytes between nodes, more within one. Slices of a sequence are parts."""
    plain = plan_of(2, 2, 4)
    works = [work_of(MODEL, replace(plain, scatter_gather=parts)) for parts in (False, True)]
    sent = [along_pipe(work, 0)[0].elements for work in works]
    assert sent[0] == 2 * sent[1] == 2 * along_pipe(work_of(MODEL, plan_of(2, 2, 4, slices=True)), 0)[0].elements
    within = [sum(one.elements for one in along_tensor(work, 0)) for work in works]
    assert within[1] - within[0] == sent[1], "of two halves each rank has one, and is sent the other"


def test_the_data_axis_says_each_gradient_twice_but_for_its_own_part() -> None:
    """2 Ψ (d-1)/d, of the parameters that a rank has: with all ranks of a model, those of the model."""
    work = work_of(MODEL, plan_of(2, 1, 2))
    once = [along_data(work, rank)[0].elements for rank in (0, 4)]
    assert sum(once) == 2 * MODEL.parameters * 3 // 4
