"""What the code that trains does on meta tensors is what the closed forms say, and where it is not, by how much."""

import time
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from reference.choices import ContextMethod, Recompute
from reference.composition.traffic import StepShape, traffic_of_model
from reference.errors import BadInput
from reference.memory import activations
from reference.memory.precision import PRECISIONS
from reference.memory.saved import total
from reference.models import GPTConfig, preset
from reference.models.moe_config import MoEConfig
from reference.plan import DataParallelism, PipelineSchedule, Plan
from reference.planning import memory, traffic, work
from reference.planning.counted import (
    BEGIN,
    DENSE,
    END,
    EXPERTS,
    CountedPlan,
    Part,
    counted,
    gathers_in,
    reductions_in,
    seen,
)
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts, Sharding
from reference.planning.one_rank import world

F = DataParallelism
WINDOWS, SEQUENCE = 2, 512
MODEL = GPTConfig(6, 256, 8, 8, 512, vocabulary=1024)
GROUPED = replace(MODEL, kv_heads=2)
PLAIN = replace(MODEL, gated=False, activation="gelu", head_size=64, kv_heads=4, hidden=1024)
TIED = replace(MODEL, kv_heads=4, tied=True)
MIXTURE = MoEConfig(
    6, 256, 8, 4, 512, vocabulary=1024, experts=8, top_k=2, expert_hidden=128, shared_experts=1, dense_layers=2
)
SLICES = {"sequence_parallel": True}


@dataclass(frozen=True)
class Case:
    """A model on some ranks."""

    config: GPTConfig
    plan: Plan
    ranks: int

    @property
    def layouts(self) -> Layouts:
        """The same plan, as closed forms take it."""
        plan, here = self.plan, self.ranks // self.plan.pipeline_parallel
        return Layouts(
            tp=plan.tensor_parallel,
            cp=plan.context_parallel,
            dp=here // plan.tensor_parallel // plan.context_parallel,
            pp=plan.pipeline_parallel,
            ep=plan.expert_parallel,
            etp=plan.expert_tensor_parallel,
            micro_batch=WINDOWS,
            recompute=plan.recompute,
            sequence_parallel=plan.sequence_parallel,
        )

    @property
    def job(self) -> Job:
        """One step of it."""
        batch = self.plan.micro_batches * WINDOWS * int(self.layouts.dp)
        return Job(self.config, GpuCluster(gpu("h100"), self.ranks), SEQUENCE, batch)


CASES = {
    "one rank": Case(MODEL, Plan(), 1),
    "replicas": Case(MODEL, Plan(F.DDP), 8),
    "selective": Case(GROUPED, Plan(F.ZERO1, recompute=Recompute.SELECTIVE), 8),
    "full": Case(GROUPED, Plan(F.ZERO2, recompute=Recompute.FULL), 8),
    "tensor": Case(PLAIN, Plan(F.FSDP, tensor_parallel=4), 16),
    "more ranks than heads of keys": Case(GROUPED, Plan(tensor_parallel=4, **SLICES), 8),
    "slices of tokens": Case(TIED, Plan(F.HSDP, tensor_parallel=4, **SLICES), 16),
    "slices, made again": Case(TIED, Plan(tensor_parallel=4, recompute=Recompute.FULL, **SLICES), 16),
    "pipeline": Case(MODEL, Plan(F.FSDP, 4, tensor_parallel=2, pipeline_parallel=2), 16),
    "halves of backward": Case(
        TIED, Plan(F.FSDP, 4, tensor_parallel=4, pipeline_parallel=2, schedule=PipelineSchedule.ZB_H1, **SLICES), 32
    ),
    **{
        f"context by {method}": Case(MODEL, Plan(context_parallel=4, context_method=method), 8)
        for method in ContextMethod
    },
    "all but experts": Case(
        GROUPED,
        Plan(F.FSDP, 4, Recompute.FULL, tensor_parallel=2, context_parallel=4, pipeline_parallel=2, **SLICES),
        32,
    ),
    "experts": Case(MIXTURE, Plan(F.FSDP, expert_parallel=4), 16),
    "experts of many ranks": Case(
        MIXTURE,
        Plan(F.ZERO1, 2, tensor_parallel=2, expert_parallel=4, expert_tensor_parallel=2, pipeline_parallel=2, **SLICES),
        32,
    ),
}
cases = pytest.mark.parametrize("case", CASES)
COUNTED: dict[str, CountedPlan] = {}


def count(name: str) -> CountedPlan:
    """A case, once for all tests."""
    if name not in COUNTED:
        case = CASES[name]
        COUNTED[name] = counted(case.config, case.plan, case.ranks, SEQUENCE, WINDOWS)
    return COUNTED[name]


def blocks(name: str) -> list[tuple[Part, bool]]:
    """The blocks of a case, and whether they have experts."""
    return [(part, kind == EXPERTS) for kind, part in count(name).parts.items() if kind in (DENSE, EXPERTS)]


@cases
def test_products_of_a_block_are_those_of_the_closed_form(case: str) -> None:
    for part, has_experts in blocks(case):
        passes = work.layer(CASES[case].job, CASES[case].layouts, has_experts)
        assert part.forward.work.flops == passes.forward.flops
        assert (part.input + part.weight).work.flops == passes.again.flops + passes.backward.flops


@cases
def test_attention_is_that_of_the_closed_form_where_a_mask_leaves_pairs(case: str) -> None:
    for part, has_experts in blocks(case):
        one = CASES[case]
        passes, left = work.layer(one.job, one.layouts, has_experts), seen(one.plan, SEQUENCE)
        assert part.forward.work.attention * left == pytest.approx(float(passes.forward.attention))
        backward = passes.again.attention + passes.backward.attention
        assert part.input.work.attention * left == pytest.approx(float(backward))
        assert part.weight.work.attention == 0


@cases
def test_logits_are_those_of_the_closed_form(case: str) -> None:
    one, parts = CASES[case], count(case).parts
    part, passes = parts.get(END, parts[BEGIN]), work.head(one.job, one.layouts)
    assert part.forward.work.flops == passes.forward.flops
    assert (part.input + part.weight).work.flops == passes.backward.flops


@cases
def test_ranks_hold_the_parameters_of_the_closed_form(case: str) -> None:
    one, parts = CASES[case], count(case).parts
    layers = one.config.layers
    dense, experts = memory.parameters(one.job, one.layouts, layers)
    numbers = Counter({DENSE: layers})
    if one.config.experts:
        numbers = Counter({DENSE: layers - len(one.config.expert_layers), EXPERTS: len(one.config.expert_layers)})
    assert sum(times * parts[kind].parameters for kind, times in numbers.items()) == dense
    assert sum(times * parts[kind].experts for kind, times in numbers.items()) == pytest.approx(float(experts))
    table = memory.table(one.job, one.layouts)
    if END in parts:
        assert (parts[BEGIN].parameters, parts[END].parameters) == (table, table + one.config.width)
    else:
        assert parts[BEGIN].parameters == (1 if one.config.tied else 2) * table + one.config.width


def test_one_rank_holds_the_whole_model() -> None:
    for name in ("one rank", "experts"):
        one, rank = CASES[name], count(name).rank()
        experts = rank.experts * one.plan.expert_parallel
        assert rank.parameters + experts == one.config.parameters


def test_pipelines_hold_it_together() -> None:
    one, t = CASES["pipeline"], CASES["pipeline"].plan.tensor_parallel
    norms = (2 * one.config.layers + 1) * one.config.width
    held = sum(count("pipeline").rank(pipe).parameters for pipe in range(2))
    assert t * (held - norms) + norms == one.config.parameters


@pytest.mark.parametrize("schedule", memory.EVEN)
@pytest.mark.parametrize("config", [MODEL, TIED, replace(MODEL, layers=10)], ids=["even", "tied", "ends have fewer"])
def test_in_a_v_the_first_rank_holds_both_ends(config: GPTConfig, schedule: PipelineSchedule) -> None:
    one = Case(config, Plan(F.DDP, 6, pipeline_parallel=3, schedule=schedule), 3)
    found = counted(config, one.plan, one.ranks, SEQUENCE, WINDOWS)
    held = [found.rank(pipe).parameters for pipe in range(3)]
    counted_twice = config.tied * memory.table(one.job, one.layouts)
    held[0] -= config.width + counted_twice  # the last norm, and a tied table
    room = memory.parts(one.job, replace(one.layouts, chunks=2, schedule=schedule))
    assert room["parameters"] == memory.PARAMETER * max(held)
    assert (room["logits"] > 0) == (held[0] == max(held))


PASSES = {
    "tensor": (8, 8),
    "more ranks than heads of keys": (8, 10),
    "slices of tokens": (8, 10),
    "slices, made again": (12, 14),
    "pipeline": (8, 8),
    "halves of backward": (8, 12),  # what both halves need is gathered for each
    "all but experts": (12, 14),
}


@pytest.mark.parametrize("case", PASSES)
def test_along_the_tensor_axis_slices_are_gathered_more_often_than_the_closed_form_says(case: str) -> None:
    """It counts 8 passes over [T, D], or 12; backward gathers again what was not kept."""
    one, (closed, here) = CASES[case], PASSES[case]
    said = traffic.along_tensor(one.job, one.layouts, traffic.groups(one.job, one.layouts)["tp"])
    for part, _ in blocks(case):
        assert part.micro_batch.along("tp").bytes == pytest.approx(float(said.bytes) * here / closed)


@pytest.mark.parametrize(("case", "rounds"), [("context by ring", 2), ("all but experts", 3)])
def test_around_a_ring_go_blocks_in_16_bits_and_their_gradients_in_32(case: str, rounds: int) -> None:
    """The closed form has one round more, and gradients go home once less: 30 for 28 on four ranks, or 36 for 34."""
    one = CASES[case]
    n, heads = one.plan.context_parallel, one.config.kv_heads // one.plan.tensor_parallel
    keys = 2 * float(one.layouts.tokens(one.job)) * heads * one.config.head_dim
    [(part, _)] = blocks(case)
    assert part.micro_batch.along("cp").bytes == keys * (2 * rounds * (n - 1) + 4 * n)
    said = traffic.along_context(one.job, one.layouts, traffic.groups(one.job, one.layouts)["cp"])
    assert said.bytes == keys * (2 * (rounds + 1) + 4) * (n - 1)


@pytest.mark.parametrize("case", ["experts", "experts of many ranks"])
def test_rows_go_to_experts_and_back_and_counts_of_them_once(case: str) -> None:
    one, part = CASES[case], count(case).parts[EXPERTS]
    said = traffic.along_experts(one.job, one.layouts, traffic.groups(one.job, one.layouts)["ep"])
    ep = one.plan.expert_parallel
    counts = 8 * one.config.experts * (ep - 1) / ep
    assert part.micro_batch.along("ep").bytes == said.bytes + counts


def test_ranks_that_share_an_expert_show_each_other_their_rows() -> None:
    """All of them, there and back, forward and backward: along an axis for which there is no closed form."""
    one, part = CASES["experts of many ranks"], count("experts of many ranks").parts[EXPERTS]
    rows = float(one.layouts.tokens(one.job) / one.layouts.tp) * one.config.top_k
    assert part.micro_batch.along("etp").bytes == pytest.approx(4 * 2 * rows * one.config.width, rel=1e-3)


BYTES = {  # that a rank sends for each parameter, here and in the closed form, before (d-1)/d
    "replicas": (Sharding.NONE, 8, 4),
    "selective": (Sharding.ZERO1, 6, 4),
    "full": (Sharding.ZERO2, 6, 4),
    "tensor": (Sharding.FSDP, 8, 6),
    "experts": (Sharding.FSDP, 8, 6),
}


@pytest.mark.parametrize("case", BYTES)
def test_gradients_travel_in_32_bits_and_parameters_in_16(case: str) -> None:
    one, part = CASES[case], count(case).parts[DENSE]
    sharding, here, closed = BYTES[case]
    layouts, d = replace(one.layouts, sharding=sharding), float(one.layouts.dp)
    sent = part.micro_batch + part.reduced + part.once
    assert sent.along("dp").bytes == part.parameters * here * (d - 1) / d
    each, once = traffic.along_data(part.parameters, layouts, traffic.groups(one.job, layouts)["dp"])
    assert each.bytes + once.bytes == part.parameters * closed * (d - 1) / d


def test_a_pipelines_stage_is_gathered_once_where_there_is_room_for_all() -> None:
    """Two stages of a rank are whole at a time; with a third they come and go, and gradients leave each time."""
    plan = Plan(F.FSDP, 8, pipeline_parallel=2, schedule=PipelineSchedule.INTERLEAVED, stages_per_rank=2)
    for chunks, gathers, reductions in ((2, [1, 1], [1, 1]), (3, [6, 5, 1], [4, 4, 1])):
        one = counted(MODEL, replace(plan, stages_per_rank=chunks), 4, SEQUENCE, WINDOWS)
        line, own = one.program[0], one.schedule.stages_on(0)
        assert [gathers_in(line, stage) for stage in own] == gathers
        assert [reductions_in(line, stage) for stage in own] == reductions
        sent = sum(
            times * one.stages[stage].sum(name).along("dp").bytes
            for name, several in (("gathered", gathers), ("reduced", reductions))
            for stage, times in zip(own, several, strict=True)
        )
        assert one.rank(0).count.along("dp").bytes == sent


@pytest.mark.parametrize("how", Recompute)
@pytest.mark.parametrize("config", [MODEL, GROUPED, PLAIN, TIED], ids=["dense", "grouped", "plain", "tied"])
def test_a_model_keeps_for_backward_what_the_formulas_say_to_the_byte(config: GPTConfig, how: Recompute) -> None:
    rank = counted(config, Plan(recompute=how), 1, SEQUENCE, WINDOWS).rank()
    bf16 = torch.bfloat16
    shared = total(activations.cos_sin(config, SEQUENCE, bf16, how))
    assert rank.kept == total(activations.model(config, WINDOWS, SEQUENCE, bf16, how)) - shared


def test_what_a_block_keeps_more_than_the_closed_form_says() -> None:
    """For each token, in bytes: the table at the head of `counted`."""
    one, (part, _) = CASES["one rank"], blocks("one rank")[0]
    config, tokens = one.config, WINDOWS * SEQUENCE
    more = {
        "1 / rms of two norms": 2 * 4,
        "log-sum-exp": 4 * config.heads,
        "attention's result, token by token": 2 * config.attended,
        "silu(gate)": 2 * config.hidden,
        "cos and sin, for queries and for keys": 2 * 2 * config.head_dim / WINDOWS,
    }
    assert part.kept == memory.layer_activations(one.job, one.layouts) + tokens * sum(more.values())


def test_products_write_what_the_closed_form_says() -> None:
    one, (part, _) = CASES["one rank"], blocks("one rank")[0]
    assert part.forward.work.written == work.layer(one.job, one.layouts, False).forward.written


@cases
def test_torchs_operations_move_more_than_fused_kernels_would(case: str) -> None:
    for part, has_experts in blocks(case):
        closed = work.layer(CASES[case].job, CASES[case].layouts, has_experts)
        assert 2.5 < part.forward.work.moved / float(closed.forward.moved) < 10


def test_halves_of_backward_are_that_of_inputs_and_that_of_weights() -> None:
    one = count("halves of backward")
    assert all(part.weight.work.flops == part.forward.work.flops for part in one.parts.values())
    whole = replace(CASES["halves of backward"].plan, schedule=PipelineSchedule.ONE_F_ONE_B)
    other = counted(TIED, whole, 32, SEQUENCE, WINDOWS)
    for name, part in one.parts.items():
        assert (part.input + part.weight).work.flops == other.parts[name].input.work.flops


STEPS = {
    "2 x 2 x 2": Plan(micro_batches=4, tensor_parallel=2, pipeline_parallel=2),
    "whole activations": Plan(micro_batches=4, tensor_parallel=2, pipeline_parallel=2, scatter_gather=False),
    "slices": Plan(micro_batches=4, tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True),
    "deep": Plan(micro_batches=6, tensor_parallel=2, pipeline_parallel=4),
    "interleaved": Plan(micro_batches=4, tensor_parallel=2, pipeline_parallel=2, schedule=PipelineSchedule.INTERLEAVED),
    "folded back": Plan(micro_batches=4, pipeline_parallel=4, schedule=PipelineSchedule.ZB_V),
}


@pytest.mark.parametrize(
    ("name", "tied"), [*((name, False) for name in STEPS), *((name, True) for name in STEPS if name != "folded back")]
)
def test_a_step_sends_what_traces_of_real_steps_do(name: str, tied: bool) -> None:
    """`composition.traffic` equals the trace of a step on eight ranks to the byte; here the same without the ranks."""
    plan, config = STEPS[name], GPTConfig(8, 16, 4, 4, 24, tied=tied)
    p = plan.pipeline_parallel
    shape = StepShape(config, plan, 8, 2, 8, PRECISIONS["fp64"])
    one = counted(config, plan, 8, 8, 2, PRECISIONS["fp64"])
    for pipe in range(p):
        expected = Counter()
        rank = next(rank for rank in range(8) if shape.mesh.coordinates(rank)["pp"] == pipe)
        for sent in traffic_of_model(shape, rank):
            expected[sent.axes[0][:2]] += sent.bytes
        found = {axis: said.bytes for axis, said in one.rank(pipe).count.sent.items() if said.bytes}
        assert found == pytest.approx(dict(expected), rel=2e-3)  # a ring's chunks differ by one number


LLAMA = {
    "8,192 tokens": (Plan(F.FSDP, 16, tensor_parallel=8, pipeline_parallel=16, **SLICES), 8192),
    "131,072 tokens": (
        Plan(F.FSDP, 16, tensor_parallel=8, context_parallel=16, pipeline_parallel=16, **SLICES),
        131_072,
    ),
}


@pytest.mark.parametrize("name", LLAMA)
def test_a_step_of_llama_3_405b_on_16384_ranks_is_counted_in_seconds(name: str) -> None:
    """One rank of each kind; processor time, since other work runs beside this."""
    count("pipeline")  # torch loads what meta tensors need
    plan, sequence = LLAMA[name]
    begin = time.process_time()
    one = counted(preset("llama3-405b"), plan, 16_384, sequence, windows=1)
    ranks = [one.rank(pipe) for pipe in (0, 7, 15)]
    took = time.process_time() - begin
    print(f"Llama 3 405B, {name}, 16,384 ranks: {took:.2f} s of processor time")
    assert took < 10
    job = Job(one.config, GpuCluster(gpu("h100"), 16_384), sequence, 16 * 128 // plan.context_parallel)
    multiplied = 16_384 / 16 * sum(one.rank(pipe).count.work.flops for pipe in range(16))
    pairs = 12 * job.batch * sequence**2 * one.config.attended * one.config.layers
    assert multiplied + pairs == pytest.approx(work.model_flops(job), rel=1e-3)  # keys and values for each of 8 heads
    assert ranks[0].kept > ranks[1].kept > ranks[2].kept


def test_values_that_nothing_has_are_refused() -> None:
    with pytest.raises(BadInput, match="capacity"):
        counted(replace(MIXTURE, capacity=1.0), Plan(), 1, SEQUENCE, WINDOWS)
    with pytest.raises(BadInput, match="expert_nodes=1"):
        counted(MIXTURE, Plan(expert_parallel=4, expert_nodes=2), 4, SEQUENCE, WINDOWS)
    with world(4), pytest.raises(BadInput, match="a rank of a process group already"):
        counted(MODEL, Plan(), 4, SEQUENCE, WINDOWS)
