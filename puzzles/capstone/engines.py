"""The engines of the card: a model and a plan each, with axes that bring the seats to use."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from reference.choices import ContextLayout
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models.config import GPTConfig
from reference.models.moe_config import MoEConfig
from reference.parallelize import DataParallelism, PipelineSchedule
from reference.plan import Plan

RANKS = 4
STEPS = 3  # of a control
SIZES = {"layers": 4, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48}
GPT = GPTConfig(**SIZES)
MOE = MoEConfig(**{**SIZES, "layers": 2}, experts=4, top_k=2, expert_hidden=24)
CONFIG = TrainConfig(GPT, steps=12, batch=8, sequence=16, warmup=2, precision=PRECISIONS["fp64"])


@dataclass(frozen=True)
class Machine:
    """What is trained, and how it is laid out on `RANKS` ranks.

    Attributes:
        name: one word.
        title: what a picture calls it.
        plan: of which seats take parts.
        config: what is learned, in float64.
    """

    name: str
    title: str
    plan: Plan
    config: TrainConfig = CONFIG

    def with_(self, **changes: object) -> "Machine":
        """The same with other settings of what is learned."""
        return replace(self, config=replace(self.config, **changes))


MIXTURE = replace(CONFIG, model=MOE)
PIPE = {"pipeline_parallel": 2, "micro_batches": 4}
MACHINES: Mapping[str, Machine] = {
    each.name: each
    for each in (
        Machine("data", "replicas, whose gradients travel in buckets", Plan(data_parallel=DataParallelism.DDP)),
        Machine("shards", "ZeRO: each rank updates a quarter", Plan(data_parallel=DataParallelism.ZERO1)),
        Machine("tensor", "matrices in halves, and two replicas", Plan(tensor_parallel=2)),
        Machine("sequence", "tokens in halves outside", Plan(tensor_parallel=2, sequence_parallel=True)),
        Machine("pipeline", "two stages, 1F1B", Plan(**PIPE)),
        Machine("zero-bubble", "two stages, ZB-H1", Plan(**PIPE, schedule=PipelineSchedule.ZB_H1)),
        Machine("interleaved", "two stages on a rank", Plan(**PIPE, schedule=PipelineSchedule.INTERLEAVED)),
        Machine(
            "context",
            "windows in halves",
            Plan(context_parallel=2, context_layout=ContextLayout.CONTIGUOUS),
        ),
        Machine("mixture", "experts on every rank", Plan(), MIXTURE),
        Machine("experts", "experts on two ranks each", Plan(expert_parallel=2), MIXTURE),
    )
}
