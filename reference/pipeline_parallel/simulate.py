"""When each action of a schedule begins and ends, for given costs.

A rank computes one action after the other, each as soon as it can: when the rank is free, and what the action needs has
come. What is sent takes its time and keeps no rank from computing.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import sub
from typing import NamedTuple

from reference.errors import BadInput

from .schedule import Action, Kind, Schedule

FORWARD, BACKWARD, INPUT, WEIGHT = Kind


class Deadlock(RuntimeError):
    """Some actions wait for each other."""


@dataclass(frozen=True)
class Costs:
    """In one unit of time: of all stages alike, or a number for each stage of the schedule.

    Raises:
        BadInput: if a cost is no time.
    """

    forward: float | Sequence[float] = 1.0
    input: float | Sequence[float] = 1.0
    weight: float | Sequence[float] = 1.0
    message: float = 0.0  # from one rank to another
    unit: str = "F"  # "s", or a word

    def __post_init__(self) -> None:
        for name in ("forward", "input", "weight", "message"):
            cost = getattr(self, name)
            for each in [cost] if isinstance(cost, int | float) else cost:
                if not 0 <= each < inf:
                    raise BadInput(f"a cost is a time, 0 or more, and {name} has {each}")

    def table(self, stages: int) -> dict[Kind, list[float]]:
        """How long each kind of action takes on each stage."""
        forward, of_input, of_weight = (_each(x, stages) for x in (self.forward, self.input, self.weight))
        backward = [sum(halves) for halves in zip(of_input, of_weight, strict=True)]
        return {FORWARD: forward, BACKWARD: backward, INPUT: of_input, WEIGHT: of_weight}


class ActionSpan(NamedTuple):
    """An action, and when it runs."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A step of all ranks: of each, when the actions of its line begin and end, as far as it comes."""

    schedule: Schedule
    begins: Sequence[Sequence[float]]
    ends: Sequence[Sequence[float]]
    unit: str = "F"  # of their times: "s", or a word

    @classmethod
    def of_spans(cls, schedule: Schedule, lines: Sequence[Sequence[ActionSpan]], unit: str = "F") -> "Simulation":
        """Of each rank's spans.

        Raises:
            BadInput: if a rank has not followed its line.
        """
        for rank, (line, planned) in enumerate(zip(lines, schedule.lines, strict=True)):
            for at, (action, *_) in enumerate(line):
                if action not in planned[at : at + 1]:
                    raise BadInput(f"rank {rank} has done {action}, and its line is {' '.join(map(str, planned))}")
        begins = [[span.begin for span in line] for line in lines]
        ends = [[span.end for span in line] for line in lines]
        return cls(schedule, begins, ends, unit)

    @cached_property
    def spans(self) -> tuple[tuple[ActionSpan, ...], ...]:
        """Of each rank, in order."""
        return tuple(
            tuple(map(ActionSpan, *line)) for line in zip(self.schedule.lines, self.begins, self.ends, strict=True)
        )

    @property
    def seconds(self) -> float:
        """From the first action of all to the last."""
        return max(ends[-1] for ends in self.ends if ends)

    @property
    def longest(self) -> float:
        """From a rank's first action to its last, of the rank that takes longest.

        That is what a step costs where ranks do not wait for each other between steps: late to begin is late to end.
        """
        return max(ends[-1] - begins[0] for begins, ends in zip(self.begins, self.ends, strict=True) if ends)

    @property
    def busy(self) -> float:
        """How long the rank computes that has most to do."""
        return max(sum(map(sub, ends, begins)) for begins, ends in zip(self.begins, self.ends, strict=True))

    @property
    def bubble_rate(self) -> float:
        """The part of a step in which ranks wait, where they do not wait between steps.

        As in Qi et al. 2023, "Zero bubble pipeline parallelism", sec. 5.3: (longest - m (F + I + W)) / longest.
        """
        return max(0.0, 1 - self.busy / self.longest)  # which rounding can put below


def simulate(schedule: Schedule, costs: Costs | None = None) -> Simulation:
    """Run a schedule on paper.

    Raises:
        Deadlock: if actions wait for each other, or for one that no rank has.
        BadInput: if there are costs of more stages than there are, or of fewer.
    """
    costs = costs or Costs()
    terms = _terms(schedule, costs)
    begins, ends = ([[] for _ in schedule.lines] for _ in range(2))
    ended: list[dict[Place, float]] = [{} for _ in terms]  # of each micro-batch
    waiting: dict[tuple[Place, int], int] = {}  # which rank waits for it
    ready = deque(range(schedule.ranks))
    while ready:
        rank = ready.popleft()
        line, began, done = schedule.lines[rank], begins[rank], ends[rank]
        now = done[-1] if done else 0.0
        for at in range(len(done), len(line)):
            kind, stage, k = line[at]
            needed, travel, seconds, made = terms[k][kind, stage]
            if needed:
                if needed not in ended[k]:
                    waiting[needed, k] = rank
                    break
                comes = ended[k][needed] + travel
                if comes > now:  # nothing to do until then
                    now = comes
            began.append(now)
            now += seconds
            done.append(now)
            if made:
                ended[k][made] = now
                if (made, k) in waiting:
                    ready.append(waiting.pop((made, k)))
    if waiting:
        stuck = [f"rank {rank} waits in {schedule.lines[rank][len(ends[rank])]}" for rank in sorted(waiting.values())]
        raise Deadlock(f"{'; '.join(stuck)}")
    return Simulation(schedule, begins, ends, costs.unit)


class Result(NamedTuple):
    """What other actions wait for: the output of a stage, or the gradient of its input."""

    is_gradient: bool
    stage: int
    micro_batch: int


def makes(action: Action) -> Result | None:
    """What others may wait for; None of gradients of weights."""
    kind, stage, micro_batch = action
    return None if kind is WEIGHT else Result(kind is not FORWARD, stage, micro_batch)


def needs(schedule: Schedule, action: Action) -> Result | None:
    """What an action waits for; None if it begins a micro-batch."""
    kind, stage, micro_batch = action
    if kind is WEIGHT:
        return Result(True, stage, micro_batch)
    before, after = schedule.neighbours[micro_batch][stage]
    if kind is FORWARD:
        return None if before is None else Result(False, before, micro_batch)
    return Result(False, stage, micro_batch) if after is None else Result(True, after, micro_batch)


Place = tuple[bool, int]
"""A `Result`, of any micro-batch."""
Terms = tuple[Place | None, float, float, Place | None]
"""Of an action: what it needs, how long that travels, how long the action takes, and what it makes."""


def _terms(schedule: Schedule, costs: Costs) -> list[dict[tuple[Kind, int], Terms]]:
    """For each micro-batch, by kind and stage. Micro-batches on the same route have one table."""
    seconds = costs.table(schedule.stages)

    def of(action: Action) -> Terms:
        needed, made = needs(schedule, action), makes(action)
        comes_far = needed and schedule.placement[needed.stage] != schedule.placement[action.stage]
        took = seconds[action.kind][action.stage]
        return needed and needed[:2], costs.message if comes_far else 0.0, took, made and made[:2]

    of_route = {
        route: {(kind, stage): of(Action(kind, stage, k)) for kind in Kind for stage in route}
        for route, k in {route: k for k, route in enumerate(schedule.routes)}.items()
    }
    return [of_route[route] for route in schedule.routes]


def _each(x: float | Sequence[float], stages: int) -> list[float]:
    each = [x] * stages if isinstance(x, int | float) else list(x)
    if len(each) != stages:
        raise BadInput(f"there are costs of {len(each)} stages, and the schedule has {stages}")
    return each
