"""A pipeline whose stages sleep: what its ranks do when, on any machine.

Where ranks share few cores, bubbles do not show: whoever waits leaves his core to another, and a step takes as long as
all work together. On GPUs every rank has a processor of its own. So have these stages, as sleeping takes none: they
wait for as long as a stage would compute, forward and in each half of backward. Everything else is real: graphs,
messages, the program that goes through the schedule, and the clock, which is the same for all ranks of a machine.
"""

import time
from collections.abc import Mapping, Sequence
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

from .run import Pipeline
from .schedule import Action, Kind, Schedule
from .simulate import Costs, Simulation, Span
from .split_backward import Later

Seconds = Mapping[Kind, Sequence[float]]
"""How long each kind of action takes on each stage: `Costs.table`."""


@dataclass(frozen=True)
class Measured:
    """A step that ranks have made."""

    step: Simulation  # its spans are measured, in seconds from the first of them
    activations: tuple[int, ...]  # the most that each rank held, of one stage and one micro-batch each
    gradients: Mapping[int, float]  # of each stage's weight: 1 of each micro-batch

    @property
    def bubble(self) -> float:
        """Seconds for which the rank waits that takes longest, from its first action to its last."""
        return self.step.longest - self.step.busy


def measure(cluster: Cluster, schedule: Schedule, costs: Costs) -> Measured:
    """Let the ranks of a pipeline sleep through a step.

    Args:
        cluster: as many ranks as the schedule has.
        schedule: that they follow.
        costs: seconds; messages take what they take.
    """
    lines, activations, gradients = zip(*cluster.run(sleep_through, schedule, costs), strict=True)
    zero = min(line[0].begin for line in lines)
    spans = tuple(tuple(Span(action, begin - zero, end - zero) for action, begin, end in line) for line in lines)
    return Measured(Simulation(schedule, spans), activations, {k: v for own in gradients for k, v in own.items()})


def sleep_through(schedule: Schedule, costs: Costs) -> tuple[list[Span], int, dict[int, float]]:
    """A step of one rank: what it did when, how many activations it held at most, and its stages' gradients.

    To be run on every rank. A first step, without sleep, tells the ranks the shapes of their messages.
    """
    forward, backward = dist.new_group(), dist.new_group()
    later = Later(nn.ModuleList())  # there is nothing to split: these stages themselves ask what is to wait
    own = [stage for stage, rank in enumerate(schedule.placement) if rank == dist.get_rank()]
    stages = {number: SleepingStage(number, later) for number in own}
    pipeline = Pipeline(schedule, stages, forward, backward, torch.device("cpu"), later)
    for seconds in (Costs(0, 0, 0), costs):
        notes = Notes(seconds.table(schedule.stages))
        for stage in stages.values():
            stage.notes, stage.weight.grad = notes, None
        dist.barrier()
        pipeline.step(lambda k: (torch.zeros(()), torch.tensor(k)), lambda y, k: y)
    return notes.spans, notes.most, {number: stage.weight.grad.item() for number, stage in stages.items()}


class Notes:
    """What a rank does when, and what it holds meanwhile."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._held: WeakSet[Activation] = WeakSet()
        self.spans: list[Span] = []
        self.most = 0

    def sleep(self, action: Action) -> None:
        """Take as long as this action takes."""
        begin = time.monotonic()
        time.sleep(self._seconds[action.kind][action.stage])
        self.spans.append(Span(action, begin, time.monotonic()))

    def held(self) -> "Activation":
        """Another activation. It counts for as long as somebody refers to it."""
        activation = Activation()
        self._held.add(activation)
        self.most = max(self.most, len(self._held))
        return activation


class Activation:
    """What a stage keeps of a micro-batch until its backward is done."""


class SleepingStage(nn.Module):
    """Adds its weight to what comes, and takes its time.

    Args:
        number: of the stage.
        later: says whether the second half of backward is to wait.
    """

    def __init__(self, number: int, later: Later) -> None:
        super().__init__()
        self.number, self.later = number, later
        self.weight = nn.Parameter(torch.zeros(()))
        self.notes: Notes | None = None  # of the step that is under way

    def forward(self, x: Tensor, micro_batch: Tensor) -> Tensor:
        """Two scalars, what to add to and which micro-batch that is -> a scalar."""
        return _Sleep.apply(torch.empty(0, requires_grad=True), x, self, micro_batch.item())

    def compute(self, kind: Kind, micro_batch: int) -> None:
        """Sleep."""
        self.notes.sleep(Action(kind, self.number, micro_batch))

    def second_half(self, micro_batch: int, gradient: Tensor, activation: Activation) -> None:
        """The weight's gradient. It takes the activation, as a product would."""
        self.compute(Kind.WEIGHT, micro_batch)
        self.weight.backward(gradient)


class _Sleep(Function):
    """`apply(anchor, x, stage, micro_batch)`: x + the stage's weight; see `SplitLinear` for the anchor."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, stage: SleepingStage, micro_batch: int) -> Tensor:
        ctx.stage, ctx.micro_batch, ctx.activation = stage, micro_batch, stage.notes.held()
        stage.compute(Kind.FORWARD, micro_batch)
        return x + stage.weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        stage, k = ctx.stage, ctx.micro_batch
        if stage.later.keeps(partial(stage.second_half, k, gradient, ctx.activation)):
            stage.compute(Kind.INPUT, k)
        else:
            stage.compute(Kind.BACKWARD, k)
            stage.weight.backward(gradient)
        return None, gradient, None, None
