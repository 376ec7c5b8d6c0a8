"""Pipelines by hand against torch.distributed.pipelining: forward and backward of a GPT on 4 ranks, 8 micro-batches.

A step is forward and backward of all micro-batches, and forgetting the gradients; an optimizer would cost both the
same. An order of ours and torch's of the same name meet alone: they live on the same ranks at the same time, on gloo,
and take their steps in turns; a step takes as long as on its slowest rank; medians over several starts of the ranks.
Both have the same stages (`reference.pipeline_parallel.stages_of`, a copy each) and the same loss; before the clock
starts, their losses and gradients must be equal. `ratio` is torch's time over ours. As in training, gradients of large
weights in ours add up as `reference.memory.fast.fused` says, which torch does not know.

What is computed between two messages depends on the model: a stage of two wide blocks takes so long, even with short
windows, that its messages are a tenth of a step; with stages of one narrow block they are more than a quarter. A row
says what the same stages take in the same step without any message.

torch cuts the batch into micro-batches, infers shapes in a first step, and splits backward by walking the graph; ours
splits linear layers. Where ranks share cores there is no bubble to see: a rank that waits lends its core to another. So
this measures what a schedule costs beside its computing (`tests/pipeline_parallel/test_measured.py` measures bubbles).

Last, how long it takes to know on paper when each action of a large pipeline begins and ends, in processor time.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.models import GPT, GPTConfig, Stack, create, token_loss
from reference.models.data import Batches, python_text
from reference.oracle import relative_difference
from reference.pipeline_parallel.orders import gpipe, interleaved, one_f_one_b
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import simulate
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward
from reference.pipeline_parallel.stages import stages_of
from reference.zero_bubble.orders import dual_pipe_v, zb_h2, zb_v

RANKS, MICRO_BATCHES = 4, 8
WIDE = GPTConfig(layers=8, width=256, heads=8, kv_heads=4, hidden=704)  # of bytes: 6.2 million parameters
NARROW = GPTConfig(layers=1, width=64, heads=2, kv_heads=1, hidden=176)
IMPORTS = ("torch._dynamo", "torch.distributed.pipelining")  # once, not once on each rank
CPU = torch.device("cpu")

Step = Callable[[Tensor, Tensor], Tensor | None]
"""From tokens [B, S] and their targets to the loss, on a rank that has it."""


@dataclass(frozen=True)
class Load:
    """How much the ranks compute between two messages."""

    name: str
    model: GPTConfig  # its layers: at least so many, and one for each stage
    sequence: int  # S, of one window: a micro-batch has one
    rounds: int  # on each start of the ranks
    bar: float

    def model_for(self, schedule: Schedule) -> GPTConfig:
        """With a block, or more, for each stage of an order."""
        return replace(self.model, layers=max(self.model.layers, len(schedule.routes[0])))


@dataclass(frozen=True)
class Order:
    """An order that both know."""

    schedule: Schedule
    theirs: str  # what torch calls it


LOADS = (
    Load("compute-heavy", WIDE, 128, 7, 1.0),
    Load("communication-heavy, wide", WIDE, 32, 15, 1.05),
    Load("communication-heavy, narrow", NARROW, 32, 21, 1.05),
)
ORDERS: Mapping[str, Order] = {
    "GPipe": Order(gpipe(RANKS, MICRO_BATCHES), "ScheduleGPipe"),
    "1F1B": Order(one_f_one_b(RANKS, MICRO_BATCHES), "Schedule1F1B"),
    "interleaved": Order(interleaved(RANKS, MICRO_BATCHES, v=2), "ScheduleInterleaved1F1B"),
    "ZB-V": Order(zb_v(RANKS, MICRO_BATCHES), "ScheduleZBVZeroBubble"),
    "DualPipeV": Order(dual_pipe_v(RANKS, MICRO_BATCHES), "ScheduleDualPipeV"),
}
LARGE = {"1F1B": one_f_one_b, "ZB-H2": zb_h2, "interleaved (4 stages a rank)": partial(interleaved, v=4)}
COMPARED_WITH_LESS = "1F1B"  # with one process, and with stages that send nothing


def measure(report: Callable[[Row], None]) -> None:
    """All orders under all loads, and then on paper."""
    for load in LOADS:
        starts = [on_new_ranks(load) for _ in range(rows.STARTS)]
        for name in ORDERS:
            found = rows.medians(rows.joined([times[name] for times in starts]))
            ours, theirs = found.pop("ours"), found.pop("torch's")
            report(rows.faster(f"{name}, {load.name}", ours, theirs, "s", load.bar))
            for what, seconds in found.items():
                report(rows.faster(f"{what} (against {name}), {load.name}", seconds, ours, "s"))
    for name, order in LARGE.items():
        seconds = statistics.median(simulation_times(order(64, 1024)))
        report(rows.below(f"{name} on paper, 64 ranks, 1024 micro-batches", seconds, 1.0, "s"))


def on_new_ranks(load: Load) -> dict[str, dict[str, list[float]]]:
    """Of each order, the seconds of each program's steps."""
    times = {}
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        for name in ORDERS:
            of_ranks, differences = zip(*cluster.run(on_rank, load, name), strict=True)
            check(name, differences)
            times[name] = rows.of_ranks(list(of_ranks))
    return times


def simulation_times(schedule: Schedule, repeats: int = 5) -> list[float]:
    """Processor seconds of `simulate`."""
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        simulate(schedule)
        seconds.append(time.process_time() - begin)
    return seconds


def check(name: str, differences: Sequence[float]) -> None:
    """See that both have computed the same on all ranks.

    Raises:
        SystemExit: if they have not.
    """
    for rank, difference in enumerate(differences):
        if not difference < 1e-4:  # float32 in another order is off by 1e-6; a message too early by 1
            raise SystemExit(f"{name} on rank {rank}: ours and torch's differ by {difference:.1g}")


def on_rank(load: Load, name: str) -> tuple[dict[str, list[float]], float]:
    """The seconds of each program's steps on this rank, and how far ours is from torch's."""
    group = rows.plain_gloo()
    batch = Batches.of(python_text(), load.sequence, MICRO_BATCHES).of_step(0)
    order = ORDERS[name]
    ours, theirs = (Program(make, load, order, group) for make in (by_hand, torchs))
    difference = ours.difference(theirs, *batch)
    programs: dict[str, Step] = {"ours": ours, "torch's": theirs}
    if name == COMPARED_WITH_LESS:
        programs["no messages"] = Program(without_messages, load, order, group)
        programs["one process"] = alone(load.model_for(order.schedule), group.rank())
    calls = {whose: partial(program, *batch) for whose, program in programs.items()}
    return rows.interleaved(calls, load.rounds, partial(dist.barrier, group)), difference


class Program:
    """A pipeline's step on this rank, with stages of its own.

    Args:
        make: of an order, this rank's stages by number, and the ranks.
        load: says of which model the stages are.
        order: that ranks follow.
        group: the ranks.
    """

    def __init__(
        self,
        make: Callable[[Order, Mapping[int, Stack], ProcessGroup], Step],
        load: Load,
        order: Order,
        group: ProcessGroup,
    ) -> None:
        stages = stages_of(load.model_for(order.schedule), order.schedule, group.rank())
        self.stages = nn.ModuleList(stages.values())
        self._step = make(order, stages, group)

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Gradients of this batch; the loss, on a rank that has it."""
        self.stages.zero_grad()
        return self._step(tokens, targets)

    def difference(self, other: "Program", tokens: Tensor, targets: Tensor) -> float:
        """The largest relative difference between losses, and between gradients, of two programs."""
        losses = [program(tokens, targets) for program in (self, other)]
        pairs = [losses] if losses[0] is not None else []
        pairs += [(x.grad, y.grad) for x, y in zip(self.stages.parameters(), other.stages.parameters(), strict=True)]
        return max(relative_difference(x, y) for x, y in pairs)


def by_hand(order: Order, stages: Mapping[int, Stack], group: ProcessGroup) -> Step:
    """Ours."""
    split_backward(nn.ModuleList(stages.values()), deferred := DeferredWeightGradients())
    pipeline = Pipeline(order.schedule, stages, group, CPU, deferred=deferred)

    def step(tokens: Tensor, targets: Tensor) -> Tensor | None:
        return pipeline.step(
            lambda k: (tokens[k : k + 1],),
            lambda logits, k: token_loss(logits, targets[k : k + 1], targets.numel()),
        )

    return step


def torchs(order: Order, stages: Mapping[int, Stack], group: ProcessGroup) -> Step:
    """torch's. Losses add up, so it must not divide gradients by the number of micro-batches."""
    from torch.distributed import pipelining

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return token_loss(logits, targets, targets.numel() * MICRO_BATCHES)

    own = [
        pipelining.PipelineStage(stage, number, order.schedule.stages, CPU, group=group)
        for number, stage in stages.items()
    ]
    given = own if len(own) > 1 else own[0]
    runner = getattr(pipelining, order.theirs)(given, MICRO_BATCHES, loss, scale_grads=False)
    has_first, has_last = any(stage.is_first for stage in own), any(stage.is_last for stage in own)

    def step(tokens: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        target = targets if has_last else None
        runner.step(*[tokens] * has_first, target=target, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if losses else None

    return step


def without_messages(order: Order, stages: Mapping[int, Stack], group: ProcessGroup) -> Step:
    """What the stages of a rank compute, of inputs and gradients that are made up."""

    def step(tokens: Tensor, targets: Tensor) -> None:
        for k in range(MICRO_BATCHES):
            for stage in stages.values():
                made_up = torch.ones(1, tokens.shape[1], stage.config.width, requires_grad=True)
                y = stage(tokens[k : k + 1] if stage.begins else made_up)
                if stage.ends:
                    token_loss(y, targets[k : k + 1], targets.numel()).backward()
                else:
                    y.backward(torch.ones_like(y))

    return step


def alone(config: GPTConfig, rank: int) -> Step:
    """The same on one rank, without micro-batches, while the others are idle."""
    model = create(GPT, config, seed=0) if rank == 0 else None

    def step(tokens: Tensor, targets: Tensor) -> Tensor | None:
        if model is None:
            return None
        model.zero_grad()
        loss = token_loss(model(tokens), targets, targets.numel())
        loss.backward()
        return loss.detach()

    return step


if __name__ == "__main__":
    rows.main("pipeline", measure)
