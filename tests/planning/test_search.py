"""The search tries all layouts that a `Plan` takes and no other, and finds the best of them, as brute force does."""

from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models.config import GPTConfig, preset
from reference.models.moe_config import MoEConfig
from reference.plan import LOOPED, DataParallelism, PipelineSchedule, Plan
from reference.planning import search as searching
from reference.planning.hardware import Gpu, GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import SIZES, Layouts, Sharding
from reference.planning.plans import layout_of, plan_of, values_in, why_none
from reference.planning.predict import Prediction, predict
from reference.planning.refusals import V_SHAPED, Objection, divides, misfit, values_of, verdicts
from reference.planning.search import SearchSpace, divisors, layouts, search

SMALL = Gpu("small", 1e14, 1e14, 0.8, memory=2e9, bandwidth=1e12, intra=1e11, inter=1e10)
DENSE = Job(GPTConfig(6, 768, 6, 2, 1536, vocabulary=4096), GpuCluster(SMALL, 12, per_node=4), sequence=768, batch=12)
MIXTURE = Job(
    MoEConfig(4, 512, 4, 4, 768, vocabulary=4096, experts=3, top_k=2, expert_hidden=384),
    GpuCluster(SMALL, 4, per_node=2), sequence=512, batch=4,
)  # fmt: skip
LLAMA_405B = Job(preset("llama3-405b"), GpuCluster(gpu("h100"), 16_384), 8192, 2048)
FEW = SearchSpace(schedules=(PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED, PipelineSchedule.ZB_V))


def key(layout: Layouts, row: int | tuple = ()) -> tuple:
    """Of a single layout, what tells it from all others."""
    values = values_of(layout)
    return tuple(int(value[row]) if name in SIZES else str(value) for name, value in values.items())


def keys(job: Job, space: SearchSpace | None = None) -> list[tuple]:
    return [key(block, row) for block in layouts(job, space) for row in range(len(block))]


def taken(job: Job, layout: Layouts) -> bool:
    """Whether a `Plan` takes it, and batch and windows divide."""
    m = job.batch / float(layout.dp * layout.micro_batch)
    if not m.is_integer() or job.sequence % layout.cp:
        return False
    try:
        plan_of(job, layout).require_fit(job.cluster.gpus, job.model, job.sequence)
    except BadInput:
        return False
    return bool(layout.tp * layout.cp * layout.dp * layout.pp == job.cluster.gpus)


def every(job: Job) -> list[Layouts]:
    """All values of all sizes, whether they divide or not, that are not another layout under another name."""
    n = job.cluster.gpus
    experts = range(1, n + 1) if job.model.experts else (1,)
    axes = [(t, c, p) for t, c, p in product(range(1, n + 1), repeat=3) if n % (t * c * p) == 0]
    found = []
    for (t, c, p), b, v, ep, etp in product(axes, range(1, job.batch + 1), range(1, 5), experts, experts):
        d = n // (t * c * p)
        for sharding, schedule, sliced in product((Sharding.NONE, Sharding.ZERO1), PipelineSchedule, (False, True)):
            chunked = v > 1 if schedule in LOOPED else v == 2 if schedule in V_SHAPED else v == 1
            has_copies = d * c > 1 or (job.model.experts and t * c * d > ep * etp)
            if chunked and (sharding is Sharding.NONE or has_copies):
                found.append(Layouts(t, c, d, p, ep, etp, b, v, sharding, schedule=schedule, sequence_parallel=sliced))
    return found


@pytest.mark.parametrize("job", [MIXTURE, Job(DENSE.model, GpuCluster(SMALL, 6, per_node=6), 768, 6)])
def test_the_space_is_what_a_plan_takes_and_each_layout_is_tried_once(job: Job) -> None:
    space = SearchSpace(shardings=(Sharding.NONE, Sharding.ZERO1), recomputes=(Recompute.NONE,))
    space_keys = [each for each in keys(job, space) if each[SIZES.index("chunks")] < 5]
    assert len(set(space_keys)) == len(space_keys) > 200
    assert set(space_keys) == {key(layout) for layout in every(job) if taken(job, layout)}


def half_fits(job: Job) -> Job:
    """The same on GPUs with so much memory that half of its layouts fit."""
    memory = float(np.median(np.concatenate([predict(job, block).bytes for block in layouts(job, FEW)])))
    return replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, memory=memory)))


@pytest.mark.parametrize("job", [DENSE, MIXTURE])
def test_the_search_finds_what_brute_force_finds(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BLOCK", 100)
    job = half_fits(job)
    found = search(job, FEW, count=4)
    everything = [predict(job, block.take(row)) for block in layouts(job, FEW) for row in range(len(block))]
    fitting = sorted((each for each in everything if each.fits), key=lambda each: float(each.seconds))
    assert (found.tried, found.fitting) == (len(everything), len(fitting)) and 0 < found.fitting < found.tried
    assert float(found.smallest.bytes) == min(float(each.bytes) for each in everything)
    of_meshes = {}
    for each in fitting:
        of_meshes.setdefault(tuple(int(getattr(each.layouts, name)) for name in SIZES[:6]), float(each.seconds))
    seconds = [float(each.seconds) for each in found.best]
    assert seconds == pytest.approx(sorted(of_meshes.values())[:4], rel=1e-12)
    assert all(each.fits for each in found.best)
    for each in found.frontier:
        better = [one for one in fitting if one.bytes <= each.bytes and one.seconds < each.seconds]
        assert not better
    sizes = [float(each.bytes) for each in found.frontier]
    assert sizes == sorted(set(sizes)) and seconds[0] == float(found.frontier[-1].seconds)
    smallest = min(float(each.bytes) for each in fitting)
    assert sizes[0] == smallest


def test_of_equally_fast_meshes_the_one_with_most_replicas_comes_first() -> None:
    found = search(Job(preset("llama3-8b"), GpuCluster(gpu("h100"), 64), 8192, 512), count=3).best
    alike = [each for each in found if float(each.seconds) == pytest.approx(float(found[0].seconds), rel=1e-9)]
    assert [int(each.layouts.dp) for each in alike] == sorted((int(each.layouts.dp) for each in alike), reverse=True)


def sampled(job: Job, count: int) -> list[Layouts]:
    """Some layouts of a large space, each of another block as far as there are some."""
    draw = Random(0)
    blocks = draw.sample(list(layouts(job)), count)
    return [block.take(draw.randrange(len(block))) for block in blocks if len(block)]


def test_a_large_space_has_only_plans_that_fit_and_a_layout_becomes_a_plan_and_back() -> None:
    for layout in sampled(LLAMA_405B, 200):
        plan = plan_of(LLAMA_405B, layout)
        plan.require_fit(LLAMA_405B.cluster.gpus, LLAMA_405B.model, LLAMA_405B.sequence)
        assert plan.dp_size(LLAMA_405B.cluster.gpus) == layout.dp
        assert key(layout_of(LLAMA_405B, plan)) == key(layout)
        assert key(Layouts(**values_in(str(layout)))) == key(layout)


def test_a_mask_and_a_sentence_say_what_a_plan_says() -> None:
    """Of layouts drawn at random, most of which do not divide."""
    draw, outcomes = Random(1), []
    for _ in range(1000):
        p = draw.choice((1, 1, 2, 4, 9))
        schedule = draw.choice(list(PipelineSchedule)) if p > 1 else PipelineSchedule.ONE_F_ONE_B
        v = draw.choice((2, 14)) if schedule in LOOPED else 2 if schedule in V_SHAPED else 1
        t, c = draw.choice((1, 2, 8, 16, 24)), draw.choice((1, 2, 3))
        layout = Layouts(
            t, c, LLAMA_405B.cluster.gpus // (t * c * p), p, draw.choice((1, 1, 1, 2)), 1, draw.choice((1, 2, 3, 4)), v,
            draw.choice(list(Sharding)), schedule=schedule, sequence_parallel=draw.choice((False, t > 1)),
        )  # fmt: skip
        outcomes.append(taken(LLAMA_405B, layout))
        assert bool(divides(LLAMA_405B, layout)) == (misfit(LLAMA_405B, layout) is None) == outcomes[-1], str(layout)
    assert 30 < sum(outcomes) < 970


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tp 256", "128 heads do not divide among 256 tensor-parallel ranks"),
        ("pp 3", "16,384 GPUs do not divide into groups of 3: pp 3"),
        ("tp 128, pp 256", "16,384 GPUs do not divide into groups of 32,768: tp 128 x pp 256"),
        ("tp 8, dp 128, cp 1, pp 1", "tp 8 x cp 1 x dp 128 x pp 1 are 1,024 ranks, and there are 16,384 GPUs"),
        ("micro batch 3", "2,048 windows do not divide among 16384 replicas in micro-batches of 3"),
        ("tp 8, ep 2", "this model has no experts to share out"),
        ("tp 8, pp 64, interleaved", "126 layers do not make 128 stages"),
        ("tp 8, pp 2, zb-v, chunks 3", "a rank has 2 chunks in zb-v, not 3"),
        ("tp 8, pp 1, gpipe", "one stage is no pipeline: gpipe with 1 chunks takes pp of 2 or more"),
        ("tp 1, sequence parallel", "it takes tp of 2 or more"),
        ("cp 16384", "8,192 tokens of a window do not divide among 16384 ranks"),
        ("tp 8, pp 16, chunks 8", "126 layers do not make 128 stages"),
    ],
)
def test_what_does_not_divide_is_said_with_its_numbers(words: str, said: str) -> None:
    assert said in why_none(LLAMA_405B, values_in(words))
    with pytest.raises(BadInput, match="no layout divides"):
        search(LLAMA_405B, SearchSpace().given(**values_in(words)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tp eight", "'tp eight' says nothing of a layout"),
        ("tp 0", "'tp 0' says nothing of a layout"),
        ("none", "recompute none"),
        ("_", "'_' says nothing of a layout"),
        ("tp 8, tp 4", "'tp 4' says tp for the second time"),
        ("full, recompute none", "'recompute none' says recompute for the second time"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        values_in(words)


def test_words_are_read_with_their_names_or_without() -> None:
    asked = values_in("TP 8, pp=16, sharding none, recompute none, zb-h1, no sequence parallel, micro_batch 2")
    assert asked == {
        "tp": 8, "pp": 16, "sharding": Sharding.NONE, "recompute": Recompute.NONE,
        "schedule": PipelineSchedule.ZB_H1, "sequence_parallel": False, "micro_batch": 2,
    }  # fmt: skip


def test_a_part_of_the_space_is_what_agrees_with_it() -> None:
    given = {"tp": 2, "pp": 2, "dp": 3, "sharding": Sharding.FSDP, "schedule": PipelineSchedule.ZB_H1}
    names = list(values_of(Layouts()))
    wanted = {each for each in keys(DENSE) if all(each[names.index(name)] == value for name, value in given.items())}
    assert set(keys(DENSE, SearchSpace().given(**given))) == wanted != set()


LLAMA_70B = Job(preset("llama3-70b"), GpuCluster(gpu("h100"), 64), 8192, 256)


@cache
def fastest(job: Job) -> Prediction:
    return search(job, count=1).best[0]


def objections(words: str) -> dict[Objection, str]:
    asked = verdicts(LLAMA_70B, Layouts(**values_in(words)), fastest(LLAMA_70B))
    return {each.objection: str(each) for each in asked}


def test_what_does_not_fit_says_by_how_much() -> None:
    found = objections("tp 8, dp 8, sharding none")
    over = float(predict(LLAMA_70B, Layouts(tp=8, dp=8)).bytes) - 80e9
    assert f"does not fit by {over / 1e9:.1f} GB" in found[Objection.MEMORY]


def test_a_wide_tensor_axis_leaves_the_node_and_full_recomputation_computes_again() -> None:
    found = objections("tp 16, pp 4, dp 1, full, sequence parallel")
    assert found[Objection.NODE].startswith("tensor axis of 16 leaves the node of 8 GPUs: ")
    assert "recompute full" in found[Objection.RECOMPUTE]


def test_a_bubble_is_named_where_it_is_large() -> None:
    words = "tp 2, pp 16, dp 2, micro_batch 32, full, fsdp, sequence parallel"
    found = objections(words)
    share = (time := predict(LLAMA_70B, Layouts(**values_in(words)))).time["bubble"] / time.seconds
    assert found[Objection.BUBBLE] == f"bubble {100 * share:.0f} % of the step: 16 stages for 4 micro-batches"
    assert share > 0.5
    assert Objection.BUBBLE not in objections("tp 2, pp 2, dp 16, full, fsdp, sequence parallel")


def test_a_slower_layout_says_which_part_takes_most_of_it() -> None:
    best = fastest(LLAMA_70B)
    slow = predict(LLAMA_70B, Layouts(tp=8, dp=8, sharding=Sharding.FSDP, recompute=Recompute.FULL))
    said = objections("tp 8, dp 8, fsdp, full")[Objection.SLOWER]
    assert said.startswith(f"{100 * (slow.seconds / best.seconds - 1):.0f} % slower than the best ({best.layouts})")
    worst = max(slow.time, key=lambda part: float(slow.time[part] - best.time[part]))
    assert f"most of it is {worst}" in said


def test_nothing_stands_against_the_best_but_what_it_pays_for() -> None:
    best = fastest(LLAMA_70B)
    against = {each.objection for each in verdicts(LLAMA_70B, best.layouts, best)}
    assert against.isdisjoint({Objection.DIVIDES, Objection.MEMORY, Objection.SLOWER})


def test_a_layout_that_does_not_divide_has_that_verdict_alone() -> None:
    (only,) = verdicts(LLAMA_70B, Layouts(tp=24, dp=8))
    assert only.objection is Objection.DIVIDES and "64 heads do not divide among 24" not in only.says
    assert "are 192 ranks" in only.says


def test_of_hybrid_sharding_nothing_is_predicted() -> None:
    with pytest.raises(BadInput, match="nothing is predicted of hsdp"):
        layout_of(DENSE, Plan(DataParallelism.HSDP))


def test_a_plan_whose_batch_does_not_divide_is_no_layout() -> None:
    with pytest.raises(BadInput, match="12 windows do not divide among 12 replicas of 5 micro-batches"):
        layout_of(DENSE, Plan(micro_batches=5))


def test_divisors_are_all_of_them_in_order() -> None:
    for n in (1, 2, 12, 36, 97, 5040):
        assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]


def test_seconds_of_a_search_are_those_of_a_prediction() -> None:
    """Memory first and seconds of what fits are no other numbers than both at once."""
    best = search(DENSE, FEW, count=1).best[0]
    block = next(
        block for block in layouts(DENSE, FEW) if key(best.layouts) in [key(block, i) for i in range(len(block))]
    )
    at = [key(block, row) for row in range(len(block))].index(key(best.layouts))
    assert float(np.asarray(predict(DENSE, block).seconds)[at]) == pytest.approx(float(best.seconds), rel=1e-12)
