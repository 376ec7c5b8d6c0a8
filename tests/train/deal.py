"""Plans with pipelines, dealt: orders and forms in turn; everything else drawn at random."""

from math import inf
from random import Random
from typing import NamedTuple

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.offload import Offload
from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import largest_difference, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.plan import LOOPED

SHAPE = {"layers": 8, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 24}
BOUND = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
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


def dealt(number: int, most_ranks: int = 8, layers: int = 8, seed: int = 0) -> Deal:
    """A plan of up to so many ranks.

    Args:
        number: each has an order and a form in its turn: 12 and 7, so 84 have all pairs of them.
        most_ranks: of all axes together.
        layers: of the model; a stage has one or more.
        seed: of what is drawn.
    """
    drawn = Random(f"{seed}, {number}")
    order, form = (
        list(PipelineSchedule)[number % len(PipelineSchedule)],
        list(DataParallelism)[number % len(DataParallelism)],
    )
    p = drawn.randint(2, min(most_ranks, layers // (2 if order in TWO_STAGES else 1)))
    t = drawn.choice([t for t in (1, 2, 4) if p * t <= most_ranks])
    d = drawn.randint(1, most_ranks // (p * t))
    plan = Plan(
        form,
        micro_batches=drawn.randint(1, 8),
        recompute=drawn.choice(list(Recompute)),
        offload=drawn.choice(list(Offload)),
        dp_replicate=drawn.choice([n for n in range(1, d + 1) if d % n == 0]) if form is DataParallelism.HSDP else None,
        tensor_parallel=t,
        sequence_parallel=(sequence_parallel := t > 1 and drawn.random() < 0.5),
        async_tensor_parallel=sequence_parallel and drawn.random() < 0.3,
        pipeline_parallel=p,
        schedule=order,
        stages_per_rank=drawn.randint(1, min(4, layers // p)) if order in LOOPED else None,
        scatter_gather=drawn.random() < 0.5,
    )
    model = GPTConfig(**SHAPE | {"layers": layers}, tied=drawn.random() < 0.5, dropout=drawn.choice((0.0, 0.2)))
    batch = d * plan.micro_batches * drawn.randint(1, 2)
    config = TrainConfig(
        model, steps=3, batch=batch, sequence=8, warmup=2, seed=drawn.randint(0, 9), precision=PRECISIONS["fp64"]
    )
    return Deal(p * d * t, config, plan)


def differences(deal: Deal, cluster: Cluster) -> dict[str, float]:
    """How far a plan is from one process, for each kind of number.

    Args:
        deal: to be run.
        cluster: of as many ranks.

    Returns:
        As `largest_difference`; and of "ranks" 0 if they all say the same, bit by bit, else infinity.
    """
    first, *others = cluster.run(on_rank.record, deal.config, deal.plan)
    agree = all(
        other.losses == first.losses
        and other.gradient_norms == first.gradient_norms
        and all(other.parameters[name].equal(value) for name, value in first.parameters.items())
        for other in others
    )
    return largest_difference(first, one_process(deal.config)) | {"ranks": 0.0 if agree else inf}
