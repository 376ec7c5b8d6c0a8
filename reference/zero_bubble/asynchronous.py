"""Train a GPT in a pipeline that never flushes: the interpreter of all schedules, with an update after each batch.

The order is that of the whole run. Nothing is said of updates in it: a stage updates its weights when a batch of
micro-batches has gone backward through it, and no rank waits for another to do so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.errors import BadInput
from reference.models import GPTConfig, token_loss
from reference.models.data import Batches
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.stages import stages_of

from .methods import Method
from .weights import OptimizerOf, Rate, Weights


@dataclass(frozen=True)
class TrainingSetup:
    """What is learned, and in which steps: the same for every method.

    Raises:
        BadInput: if a method cannot learn it.
    """

    model: GPTConfig
    batches: Batches
    updates: int
    micro_batches: int  # m, in an update
    optimizer: OptimizerOf
    rate: Rate
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.model.tied:
            raise BadInput("a tied table would have versions on two stages: train a model whose head is its own")
        if self.model.dropout:
            raise BadInput(f"these pipelines train without dropout: set it to 0, not {self.model.dropout}")
        if self.batches.batch % self.micro_batches:
            raise BadInput(f"{self.batches.batch} windows do not divide among {self.micro_batches} micro-batches")


@dataclass(frozen=True)
class TrainingResult:
    """What came of it."""

    losses: list[float]  # of each update's batch, in nats per token, with the weights that its forward saw
    weights: dict[str, Tensor]  # the newest, of this rank's stages, by the names of the whole model


def train(method: Method, setup: TrainingSetup, group: ProcessGroup, device: torch.device) -> TrainingResult:
    """Train on the ranks of `group`, which all call this with the same arguments; each has one stage.

    The gradient of a batch is that of its token losses' sum over its tokens. Its norm is not clipped: no rank knows it
    when the first stage updates.

    Raises:
        BadInput: if order, method and ranks do not fit.
    """
    p, m, batches = group.size(), setup.micro_batches, setup.batches
    schedule = method.order(p, m, setup.updates)
    weights = weights_of(group.rank(), schedule, method, setup, device)
    losses = torch.zeros(setup.updates, dtype=torch.float64, device=device)

    def given(k: int) -> tuple[Tensor]:
        return (batches.of_step(k // m, k % m, m)[0].to(device),)

    def loss(logits: Tensor, k: int) -> Tensor:
        part = token_loss(logits, batches.of_step(k // m, k % m, m)[1].to(device), batches.tokens)
        losses[k // m] += part.detach()
        return part

    asynchronous(schedule, weights, group, device).step(given, loss)
    dist.all_reduce(losses, group=group)
    newest = {name: p.detach() for one in weights.values() for name, p in one.stage.named_parameters()}
    return TrainingResult(losses.tolist(), newest)


def asynchronous(
    schedule: Schedule, weights: Mapping[int, Weights], group: ProcessGroup, device: torch.device
) -> Pipeline:
    """One rank of a pipeline whose stages update themselves.

    Args:
        schedule: of the whole run: one `step` of this pipeline.
        weights: of this rank's stages, by number.
        group: the ranks of the pipeline.
        device: where this rank computes.
    """
    stages = {number: one.stage for number, one in weights.items()}
    return Pipeline(schedule, stages, group, device, context=lambda action: weights[action.stage].context(action))


def weights_of(
    rank: int, schedule: Schedule, method: Method, setup: TrainingSetup, device: torch.device
) -> dict[int, Weights]:
    """The weights that a rank's stages begin with, and how they will be updated, by number."""
    stages, m = stages_of(setup.model, schedule, rank, setup.seed, device, setup.dtype), setup.micro_batches
    seen = method.seen(schedule, m)
    return {
        number: Weights(stage, number, schedule, seen, m, setup.optimizer, setup.rate, method.pipemare)
        for number, stage in stages.items()
    }
