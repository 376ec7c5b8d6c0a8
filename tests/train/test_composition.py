"""Any plan gives what one process gives: forms, accumulation, recomputation, offload and precision, drawn at random."""

from collections.abc import Callable
from math import isfinite

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import on_rank
from reference.cluster import Cluster
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import PRESETS, GPTConfig
from reference.oracle import largest_difference, one_process, relative_difference
from reference.parallelize import Form, Plan
from reference.train import TrainConfig

Clusters = Callable[..., Cluster]
MODELS = (PRESETS["tiny"], GPTConfig(layers=3, width=24, heads=3, kv_heads=1, hidden=40))  # tied, untied
BOUNDS = {
    "fp64": 1e-10,  # the order of additions costs 1e-15; a mistake costs 1e-3
    "fp32": 1e-3,  # 1e-7 at each addition; Adam's first steps divide gradients by themselves
    "bf16": 0.2,  # 4e-3 at each product: enough to see that it learns the same thing, and no more
    "fp16": 0.2,  # 5e-4, and gradients that underflow
}


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, Plan]:
    """A number of ranks, and a plan that fits it."""
    form = draw(st.sampled_from(Form))
    replicas = draw(st.sampled_from((1, 2, 3)))
    ranks = replicas * draw(st.integers(1, 8 // replicas)) if form is Form.HSDP else draw(st.integers(1, 8))
    recompute, offload = draw(st.sampled_from(Recompute)), draw(st.sampled_from(Offload))
    return ranks, Plan(form, draw(st.integers(1, 3)), recompute, offload, replicas=replicas)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    laid_out=plans(),
    windows=st.integers(1, 2),
    model=st.sampled_from(MODELS),
    precision=st.sampled_from(("fp64", "fp64", "fp64", "fp32", "bf16", "fp16")),
    seed=st.integers(0, 3),
)
def test_every_plan_equals_one_process(
    clusters: Clusters, laid_out: tuple[int, Plan], windows: int, model: GPTConfig, precision: str, seed: int
):
    ranks, plan = laid_out
    batch = ranks * plan.accumulate * windows
    config = TrainConfig(model, steps=5, batch=batch, sequence=8, warmup=2, seed=seed, precision=PRECISIONS[precision])
    expected = one_process(TrainConfig(**{**vars(config), "precision": PRECISIONS["fp64"]}))
    cluster = clusters(ranks, preload=("torch._dynamo",))
    first, *others = cluster.run(on_rank.record, config, plan)
    differences = largest_difference(first, expected)
    if precision in ("bf16", "fp16"):  # a step in the wrong direction shows in losses; single weights say nothing
        taken = next((k for k, norm in enumerate(first.gradient_norms) if not isfinite(norm)), 5)  # fp16 skips steps
        differences = {
            "losses": relative_difference(first.losses[: taken + 1], expected.losses[: taken + 1]),
            "gradient norms": relative_difference(first.gradient_norms[:taken], expected.gradient_norms[:taken]),
        }
        assert taken > 0
    assert max(differences.values()) < BOUNDS[precision], differences
    for other in others:
        assert other.losses == first.losses
        assert all(other.parameters[name].equal(value) for name, value in first.parameters.items())
