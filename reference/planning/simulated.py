"""A step whose pipeline is simulated, action by action: where stages differ, messages travel, and experts are uneven.

`predict` takes all stages for alike, and adds a bubble in closed form (`bubbles`). Here each stage has its own costs,
the schedule runs on paper (`pipeline_parallel.simulate`), and a step takes as long as the schedule does:

    first stage     the table of tokens, besides its blocks
    last stage      the head and the loss
    each stage      as many blocks, with experts and without, as it has: numbers that need not divide
    messages        in flight while ranks compute
    experts         a rank waits for the busiest one of those that share them out: a sample for each layer and step

So seconds are a distribution: `mean`, `p95`. What happens once a step (gradients, the optimizer) is that of `step`.

Routing is a model: each layer of each step has experts of some popularity, drawn from a Dirichlet distribution, and the
choices of a micro-batch's tokens fall on them independently. With a concentration of infinity all experts are equally
popular, and what remains is chance. No published number fixes the concentration; read it off the loads of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np

from reference.choices import Recompute
from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate
from reference.pipeline_parallel.stages import pieces_of

from . import step, traffic, work
from .constants import of_gpu
from .job import Job
from .layouts import Layouts
from .step import Constants
from .traffic import Volume
from .work import HALF, Passes, Work


@dataclass(frozen=True)
class Routing:
    """How uneven experts are.

    Attributes:
        concentration: of their popularity: infinity where all are equally popular; 1 is anything at all.
        samples: steps that are drawn.
        seed: of the draws.

    Raises:
        BadInput: if a number makes no sense.
    """

    concentration: float = inf
    samples: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.concentration > 0 or self.samples < 1:
            raise BadInput(f"a concentration is above 0, and samples are 1 or more, not those of {self}")


@dataclass(frozen=True)
class Seconds:
    """Of a micro-batch in a part of a model: forward, and the halves of backward."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.forward + other.forward, self.input + other.input, self.weight + other.weight)

    def __mul__(self, times: float) -> "Seconds":
        return Seconds(times * self.forward, times * self.input, times * self.weight)

    __rmul__ = __mul__

    @property
    def all(self) -> float:
        """Together."""
        return self.forward + self.input + self.weight


@dataclass(frozen=True)
class SimulatedStep:
    """A step, drawn several times.

    Attributes:
        schedule: of the pipeline.
        stages: seconds of each for a micro-batch, in each sample.
        message: seconds of one from stage to stage.
        rest: seconds of what happens once a step.
    """

    schedule: Schedule
    stages: Sequence[Sequence[Seconds]]
    message: float
    rest: float

    @cached_property
    def simulations(self) -> tuple[Simulation, ...]:
        """Of each sample."""
        return tuple(simulate(self.schedule, self._costs(each)) for each in self.stages)

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of a step, in each sample: [N]."""
        return np.array([each.longest for each in self.simulations]) + self.rest

    @property
    def mean(self) -> float:
        """Seconds of a step, in the mean of samples."""
        return float(self.seconds.mean())

    @property
    def p95(self) -> float:
        """Seconds that 95 of 100 steps stay below."""
        return float(np.quantile(self.seconds, 0.95))

    @property
    def bubble_rate(self) -> float:
        """The part of a step's pipeline in which the busiest rank waits, in the mean of samples."""
        return float(np.mean([each.bubble_rate for each in self.simulations]))

    def _costs(self, stages: Sequence[Seconds]) -> Costs:
        forward, of_input, of_weight = (
            [getattr(each, name) for each in stages] for name in ("forward", "input", "weight")
        )
        return Costs(forward, of_input, of_weight, self.message, unit="s")


def simulated(
    job: Job,
    layouts: Layouts,
    constants: Constants | None = None,
    routing: Routing | None = None,
    pieces: Sequence[range] | None = None,
) -> SimulatedStep:
    """Simulate a step of one layout.

    Args:
        job: what is trained, and on what.
        layouts: a single one.
        constants: of the GPU; those that were fitted by default.
        routing: how uneven experts are; equally popular by default.
        pieces: the blocks of each stage; by default such that the stage with most parameters has fewest.

    Raises:
        BadInput: if there are several layouts, micro-batches do not divide, or there are other pieces than stages.
    """
    if len(layouts) != 1:
        raise BadInput(f"a simulation is of one layout, and there are {len(layouts)}: take(index) is one of them")
    constants = of_gpu(job.cluster.gpu) if constants is None else constants
    m = float(layouts.micro_batches(job))
    if m % 1 or m < 1:
        raise BadInput(f"{job.batch} windows do not make whole micro-batches: {m:g} on a rank")
    schedule = layouts.schedule.timetable(int(layouts.pp), int(m), int(layouts.chunks))
    pieces = pieces_of(job.model, schedule.stages) if pieces is None else pieces
    if len(pieces) != schedule.stages:
        raise BadInput(f"{len(pieces)} pieces are not the {schedule.stages} stages of this schedule")
    once = step.parts(job, layouts, constants)
    rest = sum(float(once[name]) for name in ("dp", "optimizer", "step"))
    parts = ModelSeconds.of(job, layouts, constants)
    loads = busiest(job, layouts, routing or Routing())
    stages = [parts.of_stages(job, pieces, load) for load in loads]
    return SimulatedStep(schedule, stages, _message(job, layouts, constants), rest)


@dataclass(frozen=True)
class ModelSeconds:
    """Seconds of a micro-batch in each part of a model.

    Attributes:
        table, head: before the blocks, and after them with the loss.
        dense: a block without experts.
        experts: one with them, where all ranks have as much to do.
        uneven: what that takes more for each mean's worth that the busiest rank has above the mean.
    """

    table: Seconds
    head: Seconds
    dense: Seconds
    experts: Seconds = Seconds()
    uneven: Seconds = Seconds()

    @classmethod
    def of(cls, job: Job, layouts: Layouts, constants: Constants) -> "ModelSeconds":
        """Of one layout."""
        make = partial(block, job, layouts, constants)
        ends = table(job, layouts, constants), _of(job, layouts, constants, work.head(job, layouts))
        if not job.model.experts:
            return cls(*ends, make())
        even, twice = make(1.0), make(2.0)
        return cls(*ends, make(), even, twice + -1 * even)

    def of_stages(self, job: Job, pieces: Sequence[range], loads: Sequence[float]) -> list[Seconds]:
        """Of each stage, by its blocks; loads are the busiest rank's over the mean, in each layer with experts."""
        layers = job.model.expert_layers if job.model.experts else ()
        blocks = dict.fromkeys(range(job.model.layers), self.dense)
        blocks |= {layer: self.experts + (load - 1) * self.uneven for layer, load in zip(layers, loads, strict=True)}
        found = [sum((blocks[layer] for layer in piece), Seconds()) for piece in pieces]
        found[0] += self.table
        found[-1] += self.head
        return found


def block(job: Job, layouts: Layouts, constants: Constants, load: float | None = None) -> Seconds:
    """Of one block; of one with experts, if there is a load: of the busiest rank, over the mean."""
    of, groups = partial(_of, job, layouts, constants), traffic.groups(job, layouts)
    waits = partial(_waits, job, layouts, constants, groups)
    dense = of(work.layer(job, layouts, experts=False))
    sent = waits("tp", traffic.along_tensor) + waits("cp", traffic.along_context)
    if load is None:
        return dense + sent
    fed, mixed, shared = (
        of(_computed_again(layouts, passes))
        for passes in (
            work.feed_forward(job, layouts, job.model.hidden),
            work.mixture(job, layouts),
            work.feed_forward(job, layouts, job.model.shared_experts * job.model.expert_hidden),
        )
    )
    routed = mixed + -1 * shared if job.model.shared_experts else mixed
    experts = mixed + (load - 1) * routed + load * waits("ep", traffic.along_experts)
    return dense + -1 * fed + constants.experts * experts + sent


def _computed_again(layouts: Layouts, passes: Passes) -> Passes:
    """With forward once more in backward, where a whole layer is computed again."""
    again = passes.forward if layouts.recompute is Recompute.FULL else Work()
    return Passes(passes.forward, again, passes.backward)


def table(job: Job, layouts: Layouts, constants: Constants) -> Seconds:
    """Of the table of tokens: rows are copied, and their gradients added."""
    numbers = layouts.tokens(job) * job.model.width
    forward, backward = Work(moved=2 * HALF * numbers, kernels=1), Work(moved=3 * HALF * numbers, kernels=1)
    return _of(job, layouts, constants, Passes(forward, Work(), backward))


def _of(job: Job, layouts: Layouts, constants: Constants, passes: Passes) -> Seconds:
    """Of counted work; gradients of weights take as many products as forward."""
    seconds = partial(step.layer_seconds, job, layouts, constants=constants)
    forward = float(seconds(passes.forward))
    backward = float(seconds(passes.again + passes.backward))
    of_weight = min(float(seconds(Work(flops=passes.forward.flops, written=passes.forward.written))), backward)
    return Seconds(forward, backward - of_weight, of_weight)


SHARES = {"tp": 1 / 2, "ep": 1 / 2, "cp": 1 / 3}
"""Of what is sent along an axis, the part that forward waits for, where nothing is computed again."""


def _waits(job: Job, layouts: Layouts, constants: Constants, groups: dict, axis: str, along) -> Seconds:
    """What a block waits for along one axis."""
    waited = float(step.message_seconds(job, along(job, layouts, groups[axis]), groups[axis], constants))
    if axis == "tp":
        waited *= constants.tensor
    if axis == "cp":
        scores = step.layer_seconds(job, layouts, work.scores(job, layouts).all, constants)
        waited = float(step.not_hidden(waited, scores, constants))
    forward = SHARES[axis] * waited
    return Seconds(forward, waited - forward)


def _message(job: Job, layouts: Layouts, constants: Constants) -> float:
    """Seconds of one, from stage to stage."""
    group, all_of_them = traffic.groups(job, layouts)["pp"], traffic.along_pipe(job, layouts)
    calls = float(all_of_them.calls)
    one = Volume(all_of_them.bytes / max(1.0, calls), min(1.0, calls))
    return float(step.message_seconds(job, one, group, constants))


def busiest(job: Job, layouts: Layouts, routing: Routing) -> np.ndarray:
    """How much more the busiest of the ranks that share out experts has to do than the mean: [samples, layers].

    Layers are those with experts; of the micro-batches of a step it is the mean, of eight at most.
    """
    model, ep = job.model, int(layouts.ep)
    layers = len(model.expert_layers) if model.experts else 0
    if ep == 1 or not layers:
        return np.ones((routing.samples if layers and ep > 1 else 1, layers))
    random = np.random.default_rng(routing.seed)
    shape = (routing.samples, layers)
    popular = np.full((*shape, model.experts), 1 / model.experts)
    if routing.concentration < inf:
        popular = random.dirichlet(np.full(model.experts, routing.concentration), shape)
    choices = int(layouts.tokens(job) / layouts.tp * layouts.etp * ep * model.top_k)
    drawn = [random.multinomial(choices, popular) for _ in range(min(8, int(layouts.micro_batches(job))))]
    of_rank = np.stack(drawn).reshape(len(drawn), *shape, ep, -1).sum(-1)
    return (of_rank.max(-1) / of_rank.mean(-1)).mean(0)
