"""What every rank of any plan sends along every axis is what the formulas say; and what that is, by hand."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist

from reference.choices import ContextLayout, ContextMethod, Recompute
from reference.cluster import Cluster
from reference.composition.lab.by_axis import SEVERAL, bytes_by_axis, matrices_by_axis
from reference.composition.lab.reorder import reordered
from reference.composition.step_shape import StepShape, Traffic
from reference.composition.traffic import traffic_of_model, traffic_of_update
from reference.config import TrainConfig
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.mesh import Mesh
from reference.models import GPTConfig
from reference.models.config import LINEAR
from reference.models.moe_config import Balance, MoEConfig
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.trace import Link, Network, Op, Trace
from reference.train import Training

from ..data_parallel.traffic import cut
from ..parity.deal import Deal, dealt
from .traced_step import Chosen, differences, traces_of

DOUBLE = 8  # bytes
MODEL = GPTConfig(layers=8, width=16, heads=4, kv_heads=4, hidden=24)
FOUR, SMALL = replace(MODEL, layers=4), replace(MODEL, layers=2, kv_heads=2)
EXPERTS = MoEConfig(2, 16, 4, 2, 24, experts=6, top_k=2, expert_hidden=12, shared_experts=1)
SEQUENCE, WINDOWS = 8, 2
Traced = tuple[Trace, list[Chosen]]


def plan_of(
    p: int, t: int, m: int, order: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B, slices: bool = False
) -> Plan:
    return Plan(
        DataParallelism.FLAT, m, tensor_parallel=t, sequence_parallel=slices, pipeline_parallel=p, schedule=order
    )


DENSE: dict[str, tuple[GPTConfig, Plan]] = {
    "2 x 2 x 2": (FOUR, plan_of(2, 2, 4)),
    "slices": (FOUR, plan_of(2, 2, 2, slices=True)),
    "deep": (FOUR, plan_of(4, 2, 6)),
    "wide, one micro-batch": (FOUR, plan_of(2, 4, 1)),
    "interleaved": (FOUR, plan_of(2, 2, 4, PipelineSchedule.INTERLEAVED)),
    "folded back, in halves": (MODEL, plan_of(4, 2, 4, PipelineSchedule.ZB_V, slices=True)),
    "tied": (replace(FOUR, tied=True), plan_of(2, 2, 2)),
    "few key-value heads": (replace(FOUR, kv_heads=2), plan_of(2, 4, 2, slices=True)),
    "biases": (replace(FOUR, kv_heads=2, biases=LINEAR, head_size=6), plan_of(2, 4, 2, slices=True)),
    "no gate, whole activations": (
        replace(FOUR, gated=False, biases=("key", "up")),
        replace(plan_of(2, 2, 2), scatter_gather=False),
    ),
    "each gradient": (SMALL, Plan(DataParallelism.NAIVE, 2)),
    "buckets": (SMALL, Plan(DataParallelism.DDP, 2, tensor_parallel=2, sequence_parallel=True)),
    "zero1": (SMALL, Plan(DataParallelism.ZERO1, 2)),
    "zero2 of slices": (SMALL, Plan(DataParallelism.ZERO2, 2, tensor_parallel=2, sequence_parallel=True)),
    "fsdp, tied": (replace(SMALL, tied=True), Plan(DataParallelism.FSDP, 2)),
    "hsdp": (SMALL, Plan(DataParallelism.HSDP, 2, dp_replicate=4)),
    "fsdp in halves": (
        replace(MODEL, tied=True),
        replace(plan_of(2, 1, 4, PipelineSchedule.ZB_V), data_parallel=DataParallelism.FSDP),
    ),
    "fsdp in loops": (
        MODEL,
        replace(plan_of(2, 1, 4, PipelineSchedule.INTERLEAVED), data_parallel=DataParallelism.FSDP, stages_per_rank=4),
    ),
    "computed again": (SMALL, Plan(tensor_parallel=2, sequence_parallel=True, recompute=Recompute.FULL)),
}

CONTEXT: dict[str, tuple[GPTConfig, Plan]] = {
    f"{method}, {layout}": (SMALL, Plan(context_parallel=4, context_method=method, context_layout=layout, **options))
    for method, layout, options in (
        (ContextMethod.RING, ContextLayout.ZIGZAG, {}),
        (ContextMethod.ALL_GATHER, ContextLayout.STRIPED, {"recompute": Recompute.SELECTIVE}),
        (ContextMethod.ULYSSES, ContextLayout.CONTIGUOUS, {"recompute": Recompute.FULL}),
        (ContextMethod.USP, ContextLayout.DOCUMENTS, {"context_neighbours": 2}),
    )
}

MIXTURES: dict[str, tuple[MoEConfig, Plan]] = {
    "experts": (EXPERTS, Plan(DataParallelism.FSDP, 2, expert_parallel=4, expert_chunks=2)),
    "two levels": (EXPERTS, Plan(expert_parallel=4, expert_nodes=2, expert_chunks=2, recompute=Recompute.FULL)),
    "shared matrices": (replace(EXPERTS, capacity=0.75), Plan(
        tensor_parallel=2, expert_parallel=2, expert_tensor_parallel=2, expert_nodes=2,
    )),
    "folded": (replace(EXPERTS, balance=Balance.SEQUENCE), Plan(
        DataParallelism.ZERO2, tensor_parallel=2, context_parallel=2, context_method=ContextMethod.ULYSSES,
        expert_parallel=2, expert_tensor_parallel=2,
    )),
    "five axes": (replace(EXPERTS, capacity=1.0), Plan(
        DataParallelism.HSDP, dp_replicate=1, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1, micro_batches=4,
        tensor_parallel=2, sequence_parallel=True, context_parallel=2, expert_parallel=4, recompute=Recompute.FULL,
    )),
}  # fmt: skip


def deal_of(model: GPTConfig, plan: Plan, precision: str = "fp64") -> Deal:
    """On eight ranks."""
    windows = plan.dp_size(8) * plan.micro_batches * WINDOWS
    return Deal(8, TrainConfig(model, batch=windows, sequence=SEQUENCE, precision=PRECISIONS[precision]), plan)


NAMED = {name: deal_of(*case) for name, case in {**DENSE, **CONTEXT, **MIXTURES}.items()} | {
    "16 bits": deal_of(SMALL, Plan(DataParallelism.ZERO1, context_parallel=2, tensor_parallel=2), "bf16"),
    "scaled": deal_of(EXPERTS, Plan(DataParallelism.FSDP, expert_parallel=2, expert_nodes=2), "fp16"),
}
DEALT = {f"dealt {number}": dealt(number) for number in range(119) if dealt(number).ranks == 8}
CASES = NAMED | dict(list(DEALT.items())[:6])


def work_of(config: GPTConfig, plan: Plan) -> StepShape:
    return StepShape(config, plan, 8, WINDOWS, SEQUENCE, PRECISIONS["fp64"])


def along(work: StepShape, rank: int, *axes: str) -> list[Traffic]:
    """What the model's part of a step sends along axes, the ranks of which are more than one."""
    return [one for one in traffic_of_model(work, rank) if one.axes == axes]


def elements(found: list[Traffic]) -> int:
    """Of float64."""
    return sum(one.bytes for one in found) // DOUBLE


@pytest.fixture(scope="module")
def traced(clusters: Callable[..., Cluster]) -> Callable[[str], Traced]:
    """A step of a case on eight ranks, taken once."""
    return cache(lambda case: next(traces_of([CASES[case]], clusters(8))))


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_sends_along_every_axis_what_the_formulas_say(case: str, traced: Callable[[str], Traced]) -> None:
    trace, chosen = traced(case)
    assert not trace.unmatched
    assert differences(CASES[case], trace, chosen) == []


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("2 x 2 x 2", {"scatter_gather": False}),
        ("fsdp, tied", {"micro_batches": 1}),
        ("two levels", {"expert_nodes": 1}),
        ("computed again", {"recompute": Recompute.SELECTIVE}),
        ("ring, zigzag", {"context_method": ContextMethod.ALL_GATHER}),
    ],
)
def test_the_bytes_of_another_plan_differ(case: str, other: dict[str, object], traced: Callable[[str], Traced]) -> None:
    deal = CASES[case]
    windows = deal.config.batch * other.get("micro_batches", deal.plan.micro_batches) // deal.plan.micro_batches
    config = replace(deal.config, batch=windows)
    assert differences(Deal(8, config, replace(deal.plan, **other)), *traced(case))


def test_where_tokens_go_decides_what_travels(traced: Callable[[str], Traced]) -> None:
    trace, chosen = traced("experts")
    elsewhere = [{layer: (of_rank + 1) % EXPERTS.experts for layer, of_rank in each.items()} for each in chosen]
    assert differences(CASES["experts"], trace, elsewhere)


def test_the_sample_has_every_form_and_most_schedules() -> None:
    plans = [deal.plan for deal in CASES.values()]
    assert {plan.data_parallel for plan in plans} == set(DataParallelism)
    assert len({plan.schedule for plan in plans}) > 6


CUBE = Mesh({"pipe": 2, "data": 2, "tensor": 2})
IN_CUBE = dict(zip(("pp", "dp_shard", "tp_head"), CUBE.names, strict=True))


def second_step_of_the_cube() -> None:
    """As a run takes it, without an update: collectives by hand, each the fastest for its size."""
    deal = deal_of(*DENSE["2 x 2 x 2"])
    training = Training(deal.config, dist.group.WORLD, torch.device("cpu"), deal.plan)
    for step in range(2):
        training.backward(step)
        training.form.end_step()
        dist.barrier()


@pytest.fixture(scope="module")
def cube(clusters: Callable[..., Cluster]) -> Trace:
    """Two ranks on each of three axes."""
    return cut(clusters(8).trace(second_step_of_the_cube)[1])[1]


def test_two_ranks_on_an_axis_send_the_same_around_a_ring_and_by_hand(cube: Trace) -> None:
    """So a mesh of 2 x 2 x 2 is where the formulas of the paper and the bytes of a laptop are the same numbers."""
    found, work = bytes_by_axis(cube, CUBE), work_of(*DENSE["2 x 2 x 2"])
    assert SEVERAL not in found, "messages keep to one axis"
    for rank in CUBE.ranks:
        expected = dict.fromkeys(CUBE.names, 0)
        for sent in traffic_of_model(work, rank):
            expected[IN_CUBE[sent.axis]] += sent.bytes
        assert {axis: sent[rank] for axis, sent in found.items()} == expected, rank


def test_every_byte_goes_along_an_axis(cube: Trace) -> None:
    assert sum(matrices_by_axis(cube, CUBE).values()).sum(axis=1).tolist() == list(cube.bytes_sent)


def test_in_another_order_every_rank_sends_the_same_from_another_place(cube: Trace) -> None:
    inside_out = Mesh({"tensor": 2, "data": 2, "pipe": 2})
    moved = reordered(cube, CUBE, inside_out.names)
    before, after = bytes_by_axis(cube, CUBE), bytes_by_axis(moved, inside_out)
    for axis in CUBE.names:
        assert [after[axis][inside_out.rank(**CUBE.coordinates(rank))] for rank in CUBE.ranks] == before[axis]
    assert (moved.steps, len(moved.messages)) == (cube.steps, len(cube.messages))


def test_on_two_nodes_the_order_of_axes_decides_how_long_messages_take(cube: Trace) -> None:
    """Tensor parallelism between nodes: most bytes on the slowest links."""
    slow = Network(Link("fast", 0.0, 1e9), Link("slow", 0.0, 1e7), ranks_per_node=4)
    inside, outside = (
        reordered(cube, CUBE, order).replay(slow).duration
        for order in (("pipe", "data", "tensor"), ("tensor", "data", "pipe"))
    )
    assert inside < outside / 5
    with pytest.raises(BadInput, match="no axis 'data'"):
        reordered(cube, CUBE, ("pipe", "tensor"))


def test_a_message_to_nobody_in_particular_is_of_several_axes(clusters: Callable[..., Cluster]) -> None:
    """An all-reduce of all ranks goes around the corner of the mesh."""
    trace = clusters(8).trace(lambda: dist.all_reduce(torch.ones(8)))[1]
    assert sum(bytes_by_axis(trace, CUBE)[SEVERAL]) > 0


def test_the_tensor_axis_says_eight_times_the_stream_for_each_layer() -> None:
    """8 b s h (t-1)/t (PTD-P, sec. 3.2): what four more layers on each of two stages add."""
    plan = plan_of(2, 4, 3)
    more, less = (work_of(replace(MODEL, layers=layers), plan) for layers in (16, 8))
    stream = WINDOWS * SEQUENCE * MODEL.width
    for rank in range(8):
        added = elements(along(more, rank, "tp_head")) - elements(along(less, rank, "tp_head"))
        assert added == 3 * 4 * 8 * stream * 3 // 4


def pipe(work: StepShape, rank: int) -> int:
    """Elements of activations and of their gradients between stages."""
    return elements([one for one in along(work, rank, "pp") if one.op is Op.SEND])


def test_the_pipe_says_the_stream_once_each_way_for_each_micro_batch() -> None:
    """b s h (PTD-P, sec. 3.2); the first rank sends nothing back, and the last nothing on."""
    work, stream = work_of(MODEL, plan_of(4, 1, 6)), WINDOWS * SEQUENCE * MODEL.width
    assert [pipe(work, rank) for rank in (0, 2, 4, 6)] == [6 * stream, 12 * stream, 12 * stream, 6 * stream]


def test_v_chunks_make_a_rank_say_it_v_times() -> None:
    """PTD-P, sec. 2.2.2: the price of a smaller bubble. What was the end of the ring is now in the middle of it."""
    straight, twice = (
        sum(pipe(work_of(MODEL, plan_of(4, 1, 4, order)), rank) for rank in (0, 2, 4, 6))
        for order in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED)
    )
    assert twice * 3 == straight * 7, "borders between stages: 7 of 8, where there were 3 of 4"


def test_parts_travel_along_the_pipe_and_are_gathered_along_the_tensor_axis() -> None:
    """Scatter/gather (PTD-P, sec. 4.1): fewer bytes between nodes, more within one. Slices of a sequence are parts."""
    plain = plan_of(2, 2, 4)
    works = [work_of(MODEL, replace(plain, scatter_gather=parts)) for parts in (False, True)]
    sent = [pipe(work, 0) for work in works]
    assert sent[0] == 2 * sent[1] == 2 * pipe(work_of(MODEL, plan_of(2, 2, 4, slices=True)), 0)
    within = [elements(along(work, 0, "tp_head")) for work in works]
    assert within[1] - within[0] == sent[1], "of two halves each rank has one, and is sent the other"


def test_the_data_axis_says_each_gradient_twice_but_for_its_own_part() -> None:
    """2 Ψ (d-1)/d, of the parameters that a rank has: with all ranks of a model, those of the model."""
    work = work_of(MODEL, plan_of(2, 1, 2))
    assert sum(elements(along(work, rank, "dp_shard")) for rank in (0, 4)) == 2 * MODEL.parameters * 3 // 4


def test_zero_of_every_stage_says_what_its_chapter_counts() -> None:
    """Rajbhandari et al. 2020, sec. 7: 2, 2, K + 1 and 3 K passes, each of (n-1)/n of the parameters."""
    said = {
        form: elements(along(work_of(SMALL, Plan(form, 3)), 0, "dp_shard")) / SMALL.parameters * 8 / 7
        for form in (DataParallelism.DDP, DataParallelism.ZERO1, DataParallelism.ZERO2, DataParallelism.FSDP)
    }
    assert list(said.values()) == pytest.approx([2, 2, 4, 9], rel=1e-3), "but for padding"


def test_the_update_says_a_few_numbers_whatever_the_model() -> None:
    """A norm and a loss of eight bytes, around a ring of eight ranks the first of which has the only chunk."""
    for config in (SMALL, replace(SMALL, layers=4, width=32)):
        work = work_of(config, Plan(DataParallelism.FSDP))
        assert [one.what for one in traffic_of_update(work, 1)] == ["norm of gradients", "loss"]
        assert all(one.bytes <= 2 * DOUBLE for rank in range(8) for one in traffic_of_update(work, rank))


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(BadInput, match="give what block 0 has chosen"):
        work_of(EXPERTS, Plan(expert_parallel=2))
    with pytest.raises(BadInput, match="take a form that has a name"):
        work_of(SMALL, Plan(lambda gradients, group: None))
