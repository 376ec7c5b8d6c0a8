"""Schedule puzzles: a learner's function says in which order a rank computes, and the check does the rest.

    pipe        what the puzzle fixes: which rank has which stage, the ways of micro-batches, what an action costs
    orders      what the learner's function returns for each rank, written as text: "F0.3"
    Step        the schedule that the orders make: proved, and simulated for those costs

The owner of the ranks draws and proves a schedule from text alone, so nothing of a learner's is trusted. The ranks run
the same schedule with tiny layers (`drives.pipeline_parallel`), and `one_process` says what must come of that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reference.errors import BadInput
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, Simulation, simulate
from reference.pipeline_parallel.validate import Proof, validate

from .drives.pipeline_parallel import LOSS, ORDERS, batch, gradient_of, weight

if TYPE_CHECKING:
    from .puzzle import Measure

TOLERANCE = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
_SHOWN = 4, 96  # lines of a schedule in a reason, and characters of each


@dataclass(frozen=True)
class Pipe:
    """The pipeline for which a puzzle asks for orders.

    Attributes:
        placement: of each stage, the rank that computes it.
        routes: of each micro-batch, the stages that it passes forward, in order.
        costs: of the simulation. By default F = I = W = 1, and B = 2.
    """

    placement: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    costs: Costs = field(default_factory=Costs)

    @classmethod
    def straight(cls, placement: Iterable[int], micro_batches: int, costs: Costs | None = None) -> "Pipe":
        """One whose micro-batches all pass all stages in order."""
        placement = tuple(placement)
        return cls(placement, (tuple(range(len(placement))),) * micro_batches, costs or Costs())

    @property
    def ranks(self) -> int:
        """How many ranks compute."""
        return max(self.placement) + 1

    def schedule(self, orders: Any) -> Schedule:
        """What the orders of all ranks make together.

        Args:
            orders: for each rank its actions as text; or whatever stands where those should be.

        Raises:
            BadInput: if that is no list of actions.
        """
        if not isinstance(orders, list | tuple) or len(orders) != self.ranks:
            raise BadInput(f"an order for each of {self.ranks} ranks is asked for")
        return Schedule(tuple(_parsed(*each) for each in enumerate(orders)), self.placement, self.routes)

    def prove(self, schedule: Schedule) -> Proof:
        """That a schedule computes a step of training.

        Raises:
            BadInput: if it does not, with the first thing that is wrong.
        """
        proof = validate(schedule)
        if all(action.kind is Kind.FORWARD for line in schedule.lines for action in line):
            raise BadInput("nothing goes backward: each F must have its B, or I and W")
        return proof


def _parsed(rank: int, order: Any) -> tuple[Action, ...]:
    if not isinstance(order, list | tuple):
        what = "None" if order is None else getattr(order, "description", f"{type(order).__name__} {order!r}"[:60])
        raise BadInput(f"the order of rank {rank} must be a list of actions, not {what}")
    if wrong := [each for each in order if not isinstance(each, str)]:
        raise BadInput(
            f"the order of rank {rank} must be a list of actions, and there is {_called(wrong[0])} in it: write "
            "Action(kind, stage, micro_batch)"
        )
    return tuple(map(Action.parse, order))


def _called(value: Any) -> str:
    """What stands where an action should be."""
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__}"
    return getattr(value, "description", repr(value)[:60])


@dataclass(frozen=True)
class Step:
    """A step of all ranks, as it runs on paper."""

    proof: Proof
    simulation: Simulation

    @cached_property
    def bubble(self) -> float:
        """For how long ranks wait in a step, in units of the costs, where they do not wait between steps."""
        return round(self.simulation.longest - self.simulation.busy, 9)

    def measured(self, measure: "Measure") -> float:
        """What a budget limits, by the measure's name."""
        activations = self.proof.activations
        return {
            "BUBBLE": self.bubble,
            "ACTIVATIONS": max(activations),
            "ALL_ACTIVATIONS": sum(activations),
            "ROOM": self.proof.room,
        }[measure.name]


def judged(pipe: Pipe, reports: Sequence[Mapping[str, Any]]) -> tuple[Step | None, str]:
    """What ranks report of the orders: the step that they make, or else why they make none.

    Args:
        reports: what the drive has compared on each rank, decoded.
    """
    orders = reports[0].get(ORDERS)
    for rank, report in enumerate(reports):
        if report.get(ORDERS) != orders:
            return None, f"ranks 0 and {rank} find different orders: they must follow from the arguments alone"
    schedule = None
    try:
        schedule = pipe.schedule(orders)
        return Step(pipe.prove(schedule), simulate(schedule, pipe.costs)), ""
    except BadInput as error:
        return None, "\n".join([str(error), *(_shown(schedule) if schedule else ())])


def _shown(schedule: Schedule) -> list[str]:
    """The first lines of a schedule, for a reason."""
    ranks, width = _SHOWN
    lines = [f"    rank {rank}: {' '.join(map(str, line))}" for rank, line in enumerate(schedule.lines[:ranks])]
    return [line if len(line) <= width else f"{line[: width - 2]} …" for line in lines]


def one_process(pipe: Pipe, ranks: int) -> tuple[dict[str, Any], ...]:
    """By rank, the loss and the gradients that a step must end with; nothing where so many ranks can't run the pipe."""
    if ranks != pipe.ranks:
        return ({},) * ranks
    weights = [weight(stage).requires_grad_() for stage in range(len(pipe.placement))]
    inputs, losses = batch(len(pipe.routes)), []
    for x, route in zip(inputs, pipe.routes, strict=True):
        for stage in route:
            x = (x @ weights[stage].T).tanh()
        losses.append(x.square().sum() / inputs.numel())
    sum(losses).backward()
    found: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for stage, rank in enumerate(pipe.placement):
        found[rank][gradient_of(stage)] = weights[stage].grad
    for rank in {pipe.placement[route[-1]] for route in pipe.routes}:
        ends_here = [loss for loss, route in zip(losses, pipe.routes, strict=True) if pipe.placement[route[-1]] == rank]
        found[rank][LOSS] = sum(ends_here).item()
    return tuple(found)


def orders_of(function: Callable[..., Any], pipe: Pipe, arguments: Sequence[Mapping[str, Any]]) -> Schedule:
    """The schedule that a function's orders make, without a look at whether it computes a step.

    Args:
        arguments: the function's, for each rank.
    """
    return pipe.schedule([[str(action) for action in function(**each)] for each in arguments])
