"""A pipeline whose stages sleep: what its ranks do when, on any machine.

Where ranks share few cores, bubbles do not show: a rank that waits leaves its core to another, and a step takes as long
as all work together. On GPUs every rank has a processor of its own. So have these stages, as sleeping takes none: they
wait for as long as a stage would compute, forward and in each half of backward. Everything else is real: graphs,
messages, the program that goes through the schedule, and the clock.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.cluster import Cluster
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.simulate import ActionSpan, Costs, Simulation
from reference.pipeline_parallel.split_backward import DeferredWeightGradients

from .measure import Timings, measured


@dataclass(frozen=True)
class SleepingRun:
    """A step that ranks have slept through."""

    step: Simulation  # its spans are measured, in seconds
    activations: tuple[int, ...]  # the most that each rank held, of one stage and one micro-batch each
    gradients: Mapping[int, float]  # of each stage's weight: 1 of each micro-batch

    @property
    def bubble(self) -> float:
        """Seconds for which the rank waits that takes longest, from its first action to its last."""
        return self.step.longest - self.step.busy


def run_sleeping(cluster: Cluster, schedule: Schedule, costs: Costs) -> SleepingRun:
    """Let the ranks of a pipeline sleep through a step.

    Args:
        cluster: as many ranks as the schedule has.
        schedule: that they follow.
        costs: seconds; messages take what they take.
    """
    lines, activations, gradients = zip(*cluster.run(on_rank, schedule, costs), strict=True)
    return SleepingRun(measured(schedule, lines), activations, {k: v for own in gradients for k, v in own.items()})


def on_rank(schedule: Schedule, costs: Costs) -> tuple[list[ActionSpan], int, dict[int, float]]:
    """A step of one rank: what it did when, how many activations it held at most, and its stages' gradients.

    To be run on every rank. A first step, without sleep, tells the ranks the shapes of their messages.
    """
    deferred = DeferredWeightGradients()
    counter, timings = ActivationCounter(), Timings()
    own = schedule.stages_on(dist.get_rank())
    stages = {stage: SleepingStage(counter, deferred) for stage in own}
    device = torch.device("cpu")
    pipeline = Pipeline(schedule, stages, dist.group.WORLD, device, deferred=deferred, context=timings.of)
    for table in (Costs(0, 0, 0).table(schedule.stages), costs.table(schedule.stages)):
        for number, stage in stages.items():
            stage.seconds = {kind: seconds[number] for kind, seconds in table.items()}
            stage.weight.grad = None
        timings.spans.clear()
        dist.barrier()
        pipeline.step(lambda k: (torch.zeros(()),), lambda y, k: y)
    return timings.spans, counter.most, {number: stage.weight.grad.item() for number, stage in stages.items()}


class Activation:
    """What a stage keeps of a micro-batch until its backward is done."""


class ActivationCounter:
    """Counts the activations that a rank holds: each counts for as long as anything refers to it."""

    def __init__(self) -> None:
        self._held: WeakSet[Activation] = WeakSet()
        self.most = 0

    def put(self) -> Activation:
        """Another one."""
        activation = Activation()
        self._held.add(activation)
        self.most = max(self.most, len(self._held))
        return activation


class SleepingStage(nn.Module):
    """Adds its weight to what comes, and takes its time.

    Args:
        counter: of this rank.
        deferred: what waits for the second half of backward.
    """

    def __init__(self, counter: ActivationCounter, deferred: DeferredWeightGradients) -> None:
        super().__init__()
        self.counter, self.deferred = counter, deferred
        self.weight = nn.Parameter(torch.zeros(()))
        self.seconds: Mapping[Kind, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        """A scalar -> a scalar."""
        return _Sleep.apply(torch.empty(0, requires_grad=True), x, self)

    def sleep(self, kind: Kind) -> None:
        """As long as this takes."""
        time.sleep(self.seconds[kind])

    def second_half(self, gradient: Tensor, activation: Activation) -> None:
        """The weight's gradient. It asks for the activation, as a product would."""
        self.sleep(Kind.WEIGHT)
        self.weight.backward(gradient)


class _Sleep(Function):
    """`apply(anchor, x, stage)`: x + the stage's weight, some time later. `by_hand` says what the anchor is for."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, stage: SleepingStage) -> Tensor:
        ctx.stage, ctx.activation = stage, stage.counter.put()
        stage.sleep(Kind.FORWARD)
        return x + stage.weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        stage, work = ctx.stage, partial(ctx.stage.second_half, gradient, ctx.activation)
        stage.sleep(Kind.INPUT)
        if not stage.deferred.defers(work):
            work()
        return None, gradient, None
