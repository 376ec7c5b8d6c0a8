"""Any plan gives what one process gives: all that a plan can say, and precision and dropout.

Forms, ways along the tensor axis, recomputation and precisions are dealt in turn: 7, 4, 3 and 5 have no divisor in
common, so each of one kind meets each of another within 35 cases. Each way meets each size of the tensor axis, too. All
else is drawn at random.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from random import Random

import pytest

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import PRESETS, GPTConfig
from reference.oracle import Record, largest_difference, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan

Clusters = Callable[..., Cluster]
RANKS = 8  # at most
CASES = range(36)
STEPS = 5
TINY = PRESETS["tiny"]  # tied; 4 ranks share 2 key-value heads
SIX = GPTConfig(layers=2, width=24, heads=6, kv_heads=1, hidden=42)  # untied; 3 and 6 ranks pad the vocabulary
EIGHT = GPTConfig(layers=1, width=32, heads=8, kv_heads=4, hidden=40)
SPLITS = ((TINY, 2), (TINY, 4), (SIX, 2), (SIX, 3), (SIX, 6), (EIGHT, 2), (EIGHT, 4), (EIGHT, 8))
SEQUENCE = 24  # tokens, which divide among 2, 3, 4, 6 and 8 ranks
PRECISIONS_IN_TURN = ("fp64", "bf16", "fp64", "fp32", "fp16")
BOUNDS = {
    "fp64": 1e-10,  # the order of additions costs 1e-15; a mistake costs 1e-3
    "fp32": 1e-3,  # 1e-7 at each addition; Adam's first steps divide gradients by themselves
    "bf16": 0.2,  # 4e-3 at each product: enough to see that it learns the same thing, and no more
    "fp16": 0.2,  # 5e-4, and gradients that underflow
}


@dataclass(frozen=True)
class Case:
    """A model, and a plan that fits it on so many ranks."""

    ranks: int
    plan: Plan
    model: GPTConfig
    precision: str
    windows: int  # of each rank in a micro-batch
    seed: int


def case_of(number: int) -> Case:
    """Deal one, and draw what is not dealt.

    The four ways: no tensor axis; with whole tokens on all of its ranks; with slices of them; which travel in pieces.
    """
    draw, form, way = Random(number), list(DataParallelism)[number % 7], number % 4
    model, t = SPLITS[number // 4 % len(SPLITS)]
    t = t if way else 1
    replicas = draw.randint(1, min(3, RANKS // t)) if form is DataParallelism.HSDP else 1
    readers = replicas * draw.randint(1, RANKS // t // replicas)
    plan = Plan(
        form,
        micro_batches=draw.randint(1, 3),
        recompute=list(Recompute)[number % 3],
        offload=draw.choice(list(Offload)),
        dp_replicate=replicas if form is DataParallelism.HSDP else None,
        tensor_parallel=t,
        sequence_parallel=way >= 2,
        async_tensor_parallel=way == 3,
    )
    model = replace(model, dropout=draw.choice((0.0, 0.2)))
    return Case(readers * t, plan, model, PRECISIONS_IN_TURN[number % 5], draw.randint(1, 2), draw.randint(0, 3))


@pytest.mark.parametrize("number", CASES)
def test_every_plan_equals_one_process(clusters: Clusters, number: int):
    case = case_of(number)
    ranks, plan = case.ranks, case.plan
    batch = plan.dp_size(ranks) * plan.micro_batches * case.windows
    exact = TrainConfig(case.model, steps=STEPS, batch=batch, sequence=SEQUENCE, warmup=2, seed=case.seed)
    config = replace(exact, precision=PRECISIONS[case.precision])
    expected = one_process(replace(exact, precision=PRECISIONS["fp64"]))
    first, *others = clusters(ranks, preload=("torch._dynamo",)).run(on_rank.record, config, plan)
    differences = (learned if case.precision in ("bf16", "fp16") else largest_difference)(first, expected)
    assert max(differences.values()) < BOUNDS[case.precision], (case, differences)
    for other in others:
        assert other.losses == first.losses
        assert all(other.parameters[name].equal(value) for name, value in first.parameters.items())


def learned(mine: Record, oracle: Record) -> dict[str, float]:
    """What rounding leaves comparable: a step in the wrong direction shows in losses; single weights say nothing.

    From the first step on that fp16 skips, since a gradient is not finite there, the two are on different ways.
    """
    taken = next((k for k, norm in enumerate(mine.gradient_norms) if not isfinite(norm)), STEPS)
    assert taken > 0
    return {
        "losses": relative_difference(mine.losses[: taken + 1], oracle.losses[: taken + 1]),
        "gradient norms": relative_difference(mine.gradient_norms[:taken], oracle.gradient_norms[:taken]),
    }
