"""Plans, dealt: every field of `Plan`, and the models, precisions and dropout that they must work with.

Schedules (or no pipeline), forms of data parallelism, precisions, ways along the tensor axis and recomputation are
dealt in turn. There are 17, 7, 5, 4 and 3 places for them, which have no divisor in common: so every one of a kind
meets every one of another within the product of the two numbers, 119 plans at most. Everything else is drawn at random.

A new field of `Plan` is dealt or drawn here, and nowhere else.
"""

from dataclasses import fields, replace
from math import inf, isfinite
from random import Random
from typing import Any, NamedTuple

from rankwise import on_rank
from reference.choices import ContextLayout, ContextMethod
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.models.moe_config import Balance, Gate, MoEConfig
from reference.oracle import Record, largest_difference, one_process, relative_difference
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.plan import LOOPED

SHAPE = {"layers": 8, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 24}
MODELS = (
    (GPTConfig(**SHAPE), (1, 2, 4)),  # four ranks share 2 key-value heads
    (GPTConfig(8, 24, 6, 1, hidden=42), (1, 2, 3, 6)),  # 3 and 6 ranks pad the vocabulary
    (GPTConfig(8, 32, 8, 4, hidden=40), (1, 2, 4, 8)),
)
"""Models, and how many tensor-parallel ranks can share them."""

SEQUENCE = 24  # tokens, which divide among 2, 3, 4, 6 and 8 ranks
SCHEDULES = (*PipelineSchedule, *5 * (None,))  # five plans of 17 have no pipeline
WAYS = ("whole matrices", "tensor parallel", "sequence parallel", "asynchronous")
PRECISIONS_IN_TURN = ("fp64", "bf16", "fp64", "fp32", "fp16")
EXACT = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
BOUNDS = {
    "fp64": EXACT,
    "fp32": 1e-3,  # 1e-7 at each addition; Adam's first steps divide gradients by themselves
    "bf16": 0.2,  # 4e-3 at each product: enough to see that it learns the same thing, and no more
    "fp16": 0.2,  # 5e-4, and gradients that underflow
}
TWO_STAGES = (
    PipelineSchedule.ZB_V,
    PipelineSchedule.ONE_F_ONE_B_V,
    PipelineSchedule.V_HALF,
    PipelineSchedule.V_MIN,
    PipelineSchedule.DUAL_PIPE_V,
)


class Deal(NamedTuple):
    """What to learn, and how the work is laid out."""

    ranks: int
    config: TrainConfig
    plan: Plan


def dealt(number: int, most_ranks: int = 8, layers: int = 8, seed: int = 0, precision: str | None = None) -> Deal:
    """A plan of up to so many ranks.

    Args:
        number: decides what is dealt in turn.
        most_ranks: of all axes together, 2 or more.
        layers: of a model in a pipeline, a stage of which has one or more. Without a pipeline it has two.
        seed: of what is drawn.
        precision: by its name; in turn by default.
    """
    drawn = Random(f"{seed}, {number}")
    schedule, form, way = SCHEDULES[number % 17], list(DataParallelism)[number % 7], WAYS[number % 4]
    p = drawn.randint(2, min(most_ranks, layers // (2 if schedule in TWO_STAGES else 1))) if schedule else 1
    fitting = [
        (model, t) for model, sizes in MODELS for t in sizes if p * t <= most_ranks and (t > 1) == (way != WAYS[0])
    ]
    model, t = drawn.choice(fitting or [(MODELS[0][0], 1)])
    c = drawn.randint(1, most_ranks // (p * t))
    d = drawn.randint(1, most_ranks // (p * t * c))
    replicas = drawn.choice([n for n in range(1, d + 1) if d % n == 0]) if form is DataParallelism.HSDP else None
    layers = layers if schedule else 2
    if drawn.random() < 0.4:
        model = mixture(drawn, model, layers)
    plan = Plan(
        form,
        micro_batches=drawn.randint(1, 8) if schedule else drawn.randint(1, 3),
        recompute=list(Recompute)[number % 3],
        offload=drawn.choice(list(Offload)),
        dp_replicate=replicas,
        tensor_parallel=t,
        sequence_parallel=t > 1 and way in WAYS[2:],
        async_tensor_parallel=t > 1 and way == WAYS[3],
        pipeline_parallel=p,
        **{"schedule": schedule} if schedule else {},
        stages_per_rank=drawn.randint(1, min(4, layers // p)) if schedule in LOOPED else None,
        scatter_gather=drawn.random() < 0.5,
        **shared_windows(drawn, c, model.heads // t),
        **shared_experts(drawn, d // (replicas or 1) * c * t, model),
        **second_copy(drawn, form, d // (replicas or 1) * c, model),
    )
    config = TrainConfig(
        replace(model, layers=layers, tied=drawn.random() < 0.5, dropout=drawn.choice((0.0, 0.2))),
        steps=3,
        batch=d * plan.micro_batches * drawn.randint(1, 2),
        sequence=SEQUENCE,
        warmup=2,
        seed=drawn.randint(0, 9),
        precision=PRECISIONS[precision or PRECISIONS_IN_TURN[number % 5]],
    )
    return Deal(p * d * c * t, config, plan)


def second_copy(drawn: Random, form: DataParallelism, shards: int, model: GPTConfig) -> dict[str, Any]:
    """How many of so many ranks that share parameters keep a second copy together: {} for none."""
    if form not in (DataParallelism.FSDP, DataParallelism.HSDP) or isinstance(model, MoEConfig):
        return {}
    return {"secondary_shards": drawn.choice([n for n in range(1, shards + 1) if shards % n == 0])}


def shared_windows(drawn: Random, ranks: int, heads: int) -> dict[str, Any]:
    """How so many ranks, with so many heads each, share windows: {} for one."""
    if ranks == 1:
        return {}
    families = [u for u in range(1, ranks + 1) if ranks % u == 0 and heads % u == 0]
    fitting = [ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.USP]
    method = drawn.choice([*fitting, ContextMethod.ULYSSES] if ranks in families else fitting)
    return {
        "context_parallel": ranks,
        "context_method": method,
        "context_layout": drawn.choice(list(ContextLayout)),
        "context_neighbours": drawn.choice(families) if method is ContextMethod.USP else None,
    }


def mixture(drawn: Random, model: GPTConfig, layers: int) -> MoEConfig:
    """The same model with experts in some of its blocks, and a router of any kind."""
    groups = drawn.choice((1, 2))
    experts = groups * drawn.randint(2, 4)
    top_groups = drawn.randint(1, groups)
    top_k = drawn.randint(1, min(3, top_groups * experts // groups))
    return MoEConfig(
        **{each.name: getattr(model, each.name) for each in fields(GPTConfig)} | {"layers": layers},
        experts=experts,
        top_k=top_k,
        expert_hidden=12,
        shared_experts=drawn.randint(0, 1),
        dense_layers=drawn.randint(0, 1),
        experts_every=drawn.randint(1, 2) if layers > 2 else 1,
        gate=drawn.choice(list(Gate)),
        normalised=drawn.random() < 0.5 and top_k > 1,
        scale=drawn.choice((1.0, 2.5)),
        expert_groups=groups,
        top_groups=top_groups,
        capacity=drawn.choice((0.0, 0.0, 0.75, 1.25)),
        balance=drawn.choice(list(Balance)),
        z_loss=drawn.choice((0.0, 0.01)),
    )


def shared_experts(drawn: Random, ranks: int, model: GPTConfig) -> dict[str, Any]:
    """How ranks of one stage and one replica share out experts: {} where there are none."""
    if not model.experts:
        return {}
    etp = drawn.choice([n for n in (1, 1, 2, 3) if ranks % n == 0])
    ep = drawn.choice([n for n in range(1, model.experts + 1) if ranks // etp % n == 0])
    nodes = drawn.choice([n for n in range(1, ep + 1) if ep % n == 0])
    names = ("expert_parallel", "expert_tensor_parallel", "expert_nodes", "expert_chunks")
    return dict(zip(names, (ep, etp, nodes, drawn.randint(1, 3)), strict=True))


def bound_of(deal: Deal) -> float:
    """How far it may be from one process."""
    return BOUNDS[name_of(deal)]


def name_of(deal: Deal) -> str:
    """Of its precision."""
    return next(name for name, precision in PRECISIONS.items() if precision == deal.config.precision)


def differences(deal: Deal, cluster: Cluster) -> dict[str, float]:
    """How far a plan is from one process in float64, for each kind of number.

    Args:
        deal: to be run.
        cluster: of as many ranks.

    Returns:
        As `largest_difference`, of 16 bits as `learned`; and of "ranks" 0 if they all say the same, bit by bit, else
        infinity.
    """
    first, *others = cluster.run(on_rank.record, deal.config, deal.plan)
    agree = all(
        other.losses == first.losses
        and other.gradient_norms == first.gradient_norms
        and all(other.parameters[name].equal(value) for name, value in first.parameters.items())
        for other in others
    )
    compare = learned if name_of(deal) in ("bf16", "fp16") else largest_difference
    return compare(first, alone_as(deal)) | {"ranks": 0.0 if agree else inf}


def alone_as(deal: Deal) -> Record:
    """One process in float64. The load of experts may be of a micro-batch, which only a plan knows."""
    together = (deal.plan.dp_size(deal.ranks), deal.plan.micro_batches) if deal.config.model.experts else ()
    return one_process(replace(deal.config, precision=PRECISIONS["fp64"]), *together)


def learned(mine: Record, oracle: Record) -> dict[str, float]:
    """What rounding leaves comparable: a step in the wrong direction shows in losses; single weights say nothing.

    From the first step on that fp16 skips, since a gradient is not finite there, the two are on different ways; where
    that is the first step of all, nothing can be compared.
    """
    taken = next((k for k, norm in enumerate(mine.gradient_norms) if not isfinite(norm)), len(mine.gradient_norms))
    if not taken:
        return {"a first step": inf}
    return {
        "losses": relative_difference(mine.losses[: taken + 1], oracle.losses[: taken + 1]),
        "gradient norms": relative_difference(mine.gradient_norms[:taken], oracle.gradient_norms[:taken]),
    }
