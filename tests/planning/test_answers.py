"""Answers for the back of an envelope say what the planner says, where both speak of the same."""

import itertools
from dataclasses import replace

import pytest
import torch

from reference.choices import Recompute
from reference.composition.answers.best_split import best_split
from reference.models.config import GPTConfig, preset
from reference.models.moe_config import MoEConfig
from reference.pipeline_parallel.answers.throughput import best_micro_batch as of_measured_times
from reference.pipeline_parallel.schedule import Kind
from reference.plan import PipelineSchedule
from reference.planning import memory, traffic, work
from reference.planning.answers.columns import best_plan
from reference.planning.answers.experts import expert_bytes
from reference.planning.answers.fitting import cheapest_change
from reference.planning.answers.flops import flops_of_a_step
from reference.planning.answers.fullest import fullest_rank
from reference.planning.answers.granularity import activation_bytes
from reference.planning.answers.hiding import computing_bound_from
from reference.planning.answers.micro_batches import best_micro_batch
from reference.planning.answers.roofline import product_seconds
from reference.planning.answers.stages import room_of_stages
from reference.planning.answers.thumb import rule_and_price
from reference.planning.answers.utilisation import mfu_and_hfu
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import AttentionKernel, Job
from reference.planning.layouts import Layouts
from reference.planning.predict import predict
from reference.zero_bubble.orders import zb_h2

NARROW = GPTConfig(layers=24, width=512, heads=8, kv_heads=4, hidden=1408, vocabulary=1000)
MIXTURE = MoEConfig(
    layers=6, width=512, heads=8, kv_heads=4, hidden=1408, experts=16, top_k=2, expert_hidden=96, shared_experts=1
)
MODELS = (
    NARROW,
    preset("llama3-8b"),
    preset("gemma-7b"),
    replace(NARROW, gated=False, activation="gelu"),
    MIXTURE,
    replace(MIXTURE, dense_layers=2),
)
JOB = Job(NARROW, GpuCluster(gpu("h100"), 64), sequence=512, batch=256)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_flops_of_a_step_are_model_flops(model: GPTConfig) -> None:
    job = replace(JOB, model=model)
    experts = [getattr(model, name, 0) for name in ("experts", "top_k", "expert_hidden", "shared_experts")]
    found = flops_of_a_step(
        model.layers, model.width, model.heads, model.kv_heads, model.head_dim, model.hidden, model.gated,
        model.vocabulary, job.sequence, job.batch, *experts, getattr(model, "dense_layers", 0),
    )  # fmt: skip
    assert found == pytest.approx(work.model_flops(job), rel=1e-12)


@pytest.mark.parametrize("recompute", list(Recompute))
def test_utilisation_is_that_of_a_prediction(recompute: Recompute) -> None:
    """Of attention that is written: what flash attention makes again in any case, no count of papers has."""
    job = replace(JOB, attention=AttentionKernel.WRITTEN)
    found = predict(job, Layouts(dp=64, recompute=recompute))
    model = job.model
    matrices = sum(inputs * outputs for inputs, outputs in model.linear.values())
    mfu, hfu = mfu_and_hfu(
        model.layers, matrices, model.vocabulary * model.width, model.attended, job.sequence,
        float(found.tokens_per_second), 64, job.cluster.gpu.peak, str(recompute),
    )  # fmt: skip
    assert mfu == pytest.approx(float(found.mfu), rel=1e-12)
    assert hfu == pytest.approx(float(found.hfu), rel=1e-12)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(4096, 512, 1024), (128, 4096, 256), (128, 64, 25_600)])
def test_a_product_that_fills_its_tiles_takes_its_flops_or_its_bytes(rows: int, inner: int, columns: int) -> None:
    one, peak, bandwidth = work.product(rows, inner, columns), 1e15, 3e12
    found = product_seconds(rows, inner, columns, work.HALF, peak, bandwidth, 1, 128, 256)
    touched = work.HALF * (rows * inner + inner * columns + rows * columns)
    assert found == pytest.approx(max(one.forward.flops / peak, touched / bandwidth), rel=1e-12)


def computing_and_sending(strategy: str, x: int, n: int, flops: float, bandwidth: float) -> tuple[float, float]:
    """Seconds, from what `work` and `traffic` count, of a model in which x is what decides."""
    group = traffic.Group(n, n)
    match strategy:
        case "ddp":
            parameters, job = 1e6, replace(JOB, batch=1, sequence=x)
            sent = traffic.along_data(parameters, Layouts(dp=n), group)[1].bytes
            return 4 * parameters * job.tokens / flops, sent / bandwidth
        case "tp":
            job, layouts = replace(JOB, model=replace(NARROW, hidden=x, gated=False)), Layouts(tp=n)
            once = work.feed_forward(job, layouts, x).forward.flops / flops
            return once, traffic.along_tensor(job, layouts, group).bytes / 4 / bandwidth
        case "pp":
            job, layouts = replace(JOB, model=replace(NARROW, hidden=5 * NARROW.width, kv_heads=8)), Layouts(pp=n)
            model = replace(job.model, gated=False, hidden=4 * NARROW.width)
            each = work.layer(replace(job, model=model), layouts, experts=False).forward.flops
            return x * each / flops, traffic.along_pipe(job, layouts).bytes / 2 / bandwidth
        case _:
            job, layouts = replace(JOB, sequence=x * n), Layouts(cp=n)
            forward = traffic.along_context(job, layouts, group).bytes * 2 / (3 * 2 + 4)
            pairs = work.scores(replace(job, attention=AttentionKernel.WRITTEN), layouts).forward.flops
            return pairs / n / flops, forward / (n - 1) / bandwidth


@pytest.mark.parametrize(("strategy", "n"), list(itertools.product(("ddp", "tp", "pp", "cp"), (2, 8))))
def test_from_there_on_what_is_counted_takes_longer_than_what_is_sent(strategy: str, n: int) -> None:
    flops, bandwidth = 495 * 10**12, 11 * 10**9
    least = computing_bound_from(strategy, n, flops, bandwidth, 2, NARROW.width, NARROW.attended, 4 * 64)
    assert least > 1
    computing, sending = computing_and_sending(strategy, least, n, flops, bandwidth)
    assert computing >= sending
    computing, sending = computing_and_sending(strategy, least - 1, n, flops, bandwidth)
    assert computing < sending


def test_replicas_and_shards_hide_from_the_same_batch_on() -> None:
    found = {each: computing_bound_from(each, 8, 10**15, 10**11, 2, 64, 64, 64) for each in ("ddp", "fsdp")}
    assert found["ddp"] == found["fsdp"]


KEPT = 4 * 2 * 512 + 2 * (2 * 512 + 2 * 256) + 2 * 3 * 1408  # norms and sums; attention; feed-forward


@pytest.mark.parametrize(
    ("schedule", "p", "v", "recompute"),
    [
        ("1f1b", 4, 1, False),
        ("1f1b", 8, 1, True),
        ("1f1b", 1, 1, False),
        ("interleaved", 4, 3, False),
        ("interleaved", 4, 2, True),
    ],
)
def test_the_fullest_rank_holds_what_the_planner_says(schedule: str, p: int, v: int, recompute: bool) -> None:
    job = replace(JOB, batch=64)
    layouts = Layouts(
        pp=p,
        dp=2,
        chunks=v,
        schedule=PipelineSchedule(schedule),
        recompute=Recompute.FULL if recompute else Recompute.NONE,
    )
    found = memory.parts(job, layouts)
    model, width = job.model, job.model.width
    _, held = fullest_rank(
        schedule, p, v, 32, model.layers, model.block_parameters, model.vocabulary * width, 512, KEPT, 2 * width,
        recompute, 6 * model.vocabulary,
    )  # fmt: skip
    assert held == pytest.approx(float(sum(found.values()) - found["reserve"]), rel=1e-12)


@pytest.mark.parametrize("recompute", list(Recompute))
def test_activations_are_the_planners_whatever_is_made_again(recompute: Recompute) -> None:
    job = replace(JOB, attention=AttentionKernel.WRITTEN)
    scores = 5 * job.sequence * NARROW.heads
    kept = KEPT + 2 * NARROW.width + scores  # masks of dropout
    found = activation_bytes(NARROW.layers, job.sequence, kept, scores, 2 * NARROW.width, str(recompute), every=1)
    said = memory.parts(job, Layouts(dp=64, recompute=recompute))
    assert found == float(said["activations"] + said["made again"])


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (1, 8, 1), (4, 2, 1), (2, 4, 2), (4, 1, 4)])
def test_a_layer_of_experts_takes_what_the_planner_says(tp: int, ep: int, etp: int) -> None:
    model = replace(MIXTURE, shared_experts=0)
    layouts = Layouts(tp=tp, dp=64 // tp, ep=ep, etp=etp)
    state, activations = expert_bytes(
        JOB.sequence, model.width, model.experts, model.top_k, model.expert_hidden, tp, ep, etp
    )
    assert state == 18 * float(memory.parameters(replace(JOB, model=model), layouts, 1.0)[1])
    jobs = [replace(JOB, model=replace(model, top_k=k * model.top_k)) for k in (1, 2)]
    once, twice = (float(memory.layer_activations(job, layouts)) for job in jobs)
    assert activations == pytest.approx(twice - once, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), [(4, 16), (6, 5), (1, 3)])
def test_stages_with_plenty_of_room_begin_as_zb_h2_does(p: int, m: int) -> None:
    found = room_of_stages(10**12, [3] * p, m, 5, 7, 11, 13)
    forwards = [itertools.takewhile(lambda action: action.kind is Kind.FORWARD, line) for line in zb_h2(p, m).lines]
    assert found == [len(list(each)) for each in forwards]


def test_zero1_is_the_change_wherever_it_is_enough() -> None:
    """It costs nothing, so it is as good as none. On links so fast that gradients are free, no other change is."""
    sizes = dict(
        layers=32, weights=12 * 2560**2, width=2560, tokens=2048, micro_batches=8, kept=87_040, inputs=5120, ranks=64,
        node=8, stages=4, flops=5e14, intra=4.5e11, inter=1e15,
    )  # fmt: skip
    replica = 18 * 32 * sizes["weights"] + 32 * 2048 * 87_040
    assert cheapest_change(**sizes, memory=replica) in ("nothing", "zero1")
    assert cheapest_change(**sizes, memory=replica - 1) == "zero1"
    assert cheapest_change(**sizes, memory=1e9) is None


@pytest.mark.parametrize(
    ("samples", "p", "lost", "room"), [(512, 8, 1.5, 10**9), (360, 4, 0.7, 10**9), (64, 4, 9.0, 60_000)]
)
def test_a_model_of_times_chooses_what_measured_times_choose(samples: int, p: int, lost: float, room: int) -> None:
    sizes = [size for size in range(1, samples + 1) if samples % size == 0]
    forward, backward = ({size: part * (size + lost) for size in sizes} for part in (1, 2))
    found = best_micro_batch(samples, p, 1, 3.0, lost, 40_000, 1000, room)
    assert found == of_measured_times(samples, p, forward, backward, 40_000, 1000, room)


JOBS = list(itertools.product((16, 64), (64, 256), (0.5, 4.0), (2e9, 2e10), (5e9, 100e9)))


@pytest.mark.parametrize(("ranks", "batch", "seconds", "stream", "inter"), JOBS)
def test_columns_and_the_rule_are_held_against_the_best_split(
    ranks: int, batch: int, seconds: float, stream: float, inter: float
) -> None:
    """With room for all, and splits into powers of two: these three know the same times."""
    weights, endless = 6e9, 1e30
    p, _, t = best_split(ranks, ranks, batch, 64, seconds, stream, 16 * weights, 1e9, endless, 3e11, inter)
    powers = [2**exponent for exponent in range(ranks.bit_length())]
    rows = list(itertools.product(powers, powers))
    tp, pp = (torch.tensor(column) for column in zip(*rows, strict=True))
    one, never = torch.ones_like(tp), torch.zeros_like(tp, dtype=torch.bool)
    shared = dict(ranks=ranks, node=ranks, batch=batch, layers=64, seconds=seconds, stream=stream)
    links = dict(memory=endless, intra=3e11, inter=inter)
    row = best_plan(tp, pp, one, never, **shared, start=0.0, state=18 * weights, kept=1e9, inputs=1e9, **links)
    assert rows[row] == (t, p)
    *split, price = rule_and_price(**shared, weights=weights, activations=1e9, **links)
    assert split == [1, 1, ranks]
    assert price >= 1
    assert (price == 1) == ((t, p) == (1, 1))
