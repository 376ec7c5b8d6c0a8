"""Run programs that gather, free and reduce on paper: what they take, and what a rank holds.

A rank computes one action after the other. Gathering and summing happen beside that, one after the other on a link of
their own: a `Gather` begins when the rank comes to it, and a rank that computes with the stage waits until it is there.
All that share a stage run the same program, so they gather at the same time.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reference.errors import BadInput
from reference.pipeline_parallel.passes import Free, Gather, Reduce, brings_gradients, stage_of
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import ActionSpan, Costs, Result, Simulation, makes, needs
from reference.pipeline_parallel.validate import validate
from reference.pipeline_parallel.walk import Walk

Step = Action | Gather | Free | Reduce


COSTS = Costs(forward=1.0, input=1.0, weight=1.0, message=0.25)
GATHER = 2.0  # as long as a backward


@dataclass(frozen=True)
class ProgramSimulation:
    """A step of all ranks of a pipeline."""

    simulation: Simulation  # of what they compute
    seconds: float  # until the last gradient is summed
    whole: int  # stages that are whole on a rank at a time, at most
    gradients: int  # of which a rank has the whole gradient at a time, at most


def parse(text: str) -> Step:
    """The step that prints as `text`: F0.3, B0.3, B0.3+, G0, f0.

    Raises:
        BadInput: if none does.
    """
    if found := re.fullmatch(r"([Gf])(\d+)", text):
        return (Gather if found[1] == "G" else Free)(int(found[2]))
    action = Action.parse(text.removesuffix("+"))
    if not text.endswith("+"):
        return action
    if not brings_gradients(action):
        raise BadInput(f"{action} brings no gradients of weights that {text} could sum")
    return Reduce(action)


def action_of(step: Step) -> Action | None:
    """What a step computes."""
    return step.action if isinstance(step, Reduce) else step if isinstance(step, Action) else None


def simulate_program(
    programs: Sequence[Sequence[Step]], v: int, m: int, costs: Costs = COSTS, gather: float = GATHER
) -> ProgramSimulation:
    """Run a step on paper.

    Args:
        programs: of each rank of a pipeline, of which rank r has the stages r, p + r, 2p + r, ...
        v: stages on each rank.
        m: micro-batches.
        costs: as for `simulate`.
        gather: what it takes to gather a stage, or to sum its gradients, over those who share it.

    Raises:
        BadInput: if the programs make no step, with the first thing that is wrong.
    """
    p = len(programs)
    lines = [tuple(filter(None, map(action_of, program))) for program in programs]
    if halves := [action for line in lines for action in line if action.kind in (Kind.INPUT, Kind.WEIGHT)]:
        raise BadInput(f"{halves[0]} is half a backward, and has no price here: take B")
    schedule = Schedule.straight(lines, [stage % p for stage in range(p * v)], m)
    validate(schedule)
    for rank, program in enumerate(programs):
        for step in program:
            if isinstance(step, Gather | Free) and step.stage not in range(rank, p * v, p):
                raise BadInput(f"rank {rank} has {step} in its program, and no stage {step.stage}")
    held = [most_held(rank, program) for rank, program in enumerate(programs)]
    ended: dict[Result, float] = {}
    ranks = [_Rank(rank, schedule, costs, gather, ended) for rank in range(p)]
    Walk(programs).go(lambda rank, step: ranks[rank].can(step), lambda rank, step: ranks[rank].does(step))
    simulation = Simulation.of_spans(schedule, [rank.spans for rank in ranks])
    seconds = max(max(rank.now, rank.link) for rank in ranks)
    return ProgramSimulation(simulation, seconds, *(max(each) for each in zip(*held, strict=True)))


def most_held(rank: int, program: Iterable[Step]) -> tuple[int, int]:
    """How many stages and how many gradients are whole at a time, at most.

    Raises:
        BadInput: if a stage computes that is not whole, stays whole, or has gradients that are never summed.
    """
    whole, gradients, most = set(), {}, (0, 0)
    for step in program:
        if isinstance(step, Gather):
            if step.stage in whole:
                raise BadInput(f"rank {rank} gathers stage {step.stage}, which is whole already")
            whole.add(step.stage)
        elif isinstance(step, Free):
            if step.stage not in whole:
                raise BadInput(f"rank {rank} frees stage {step.stage}, which is not whole")
            whole.remove(step.stage)
        else:
            if stage_of(step) not in whole:
                raise BadInput(f"rank {rank} computes {step}, and stage {stage_of(step)} is not whole: gather it first")
            if brings_gradients(action_of(step)):
                gradients[stage_of(step)] = step
        most = max(most[0], len(whole)), max(most[1], len(gradients))
        if isinstance(step, Reduce):
            gradients.pop(stage_of(step), None)
    if gradients:
        last = next(iter(gradients.values()))
        raise BadInput(f"rank {rank} never sums what {last} has found over those who share its stage")
    if whole:
        raise BadInput(f"rank {rank} still has stage {min(whole)} whole when the step is over: free it")
    return most


class _Rank:
    """When a rank does what. `ended` is of all ranks: when a result was there."""

    def __init__(self, rank: int, schedule: Schedule, costs: Costs, gather: float, ended: dict[Result, float]) -> None:
        self.rank, self.schedule, self.ended = rank, schedule, ended
        self.seconds, self.message, self.gather = costs.table(schedule.stages), costs.message, gather
        self.now, self.link = 0.0, 0.0  # when this rank and its link are free
        self.gathered: dict[int, float] = {}  # when a stage is whole
        self.spans: list[ActionSpan] = []

    def can(self, step: Step) -> bool:
        """Whether what a step computes with is there at some time."""
        action = action_of(step)
        needed = action and needs(self.schedule, action)
        return needed is None or needed in self.ended

    def does(self, step: Step) -> None:
        """Compute when all is there; gather and sum on the link."""
        if isinstance(step, Gather):
            self.link = self.gathered[step.stage] = max(self.now, self.link) + self.gather
        if action := action_of(step):
            needed = needs(self.schedule, action)
            self.computes(action, 0.0 if needed is None else self.ended[needed] + self.way(needed))
            self.ended[makes(action)] = self.now
        if isinstance(step, Reduce):
            self.link = max(self.now, self.link) + self.gather

    def way(self, needed: Result) -> float:
        """How long a result is in flight to this rank."""
        return 0.0 if self.schedule.placement[needed.stage] == self.rank else self.message

    def computes(self, action: Action, arrived: float) -> None:
        begin = max(self.now, self.gathered[action.stage], arrived)
        self.now = begin + self.seconds[action.kind][action.stage]
        self.spans.append(ActionSpan(action, begin, self.now))
