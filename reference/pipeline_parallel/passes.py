"""From an order of computation to a program: all that a rank does in a step, one thing after the other.

    F0.3        compute
    S0.3>1      hand the output of stage 0 on micro-batch 3 to rank 1;    s4.3>0    ... the gradient of stage 4's input
    R0.3<0      begin to receive it from rank 0
    G2          gather the parameters of stage 2;                         f2        free what was gathered
    B2.7+       compute; no gradient of stage 2 follows, so let the sums over replicas begin

A schedule says nothing of all this: it follows. A pass adds one kind of step to a line and leaves the
others as they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from .schedule import Action, Kind, Schedule
from .simulate import Result, makes, needs

GATHERED = 2  # stages of a rank that are whole at a time: one that computes, and the next one in flight


class Channel(NamedTuple):
    """A way that messages take, one after the other."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Send:
    """Let a result leave, without a wait for it to arrive."""

    result: Result
    to: int  # rank

    def __str__(self) -> str:
        return f"{'Ss'[self.result.is_gradient]}{self.result.stage}.{self.result.micro_batch}>{self.to}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Have a place ready for a result. The action that needs it waits for it."""

    result: Result
    source: int  # rank

    def __str__(self) -> str:
        return f"{'Rr'[self.result.is_gradient]}{self.result.stage}.{self.result.micro_batch}<{self.source}"


@dataclass(frozen=True, slots=True)
class Gather:
    """Begin to gather the parameters of a stage from those who hold shards of them."""

    stage: int

    def __str__(self) -> str:
        return f"G{self.stage}"


@dataclass(frozen=True, slots=True)
class Free:
    """Keep this rank's shard of a stage alone: gradients that were not summed yet leave first."""

    stage: int

    def __str__(self) -> str:
        return f"f{self.stage}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Compute an action, the last that brings gradients of its stage, and sum these over replicas as they come."""

    action: Action

    def __str__(self) -> str:
        return f"{self.action}+"


Step = Action | Send | Receive | Gather | Free | Reduce


@dataclass(frozen=True)
class Program:
    """What every rank does in one step of training, or of inference."""

    schedule: Schedule
    lines: tuple[tuple[Step, ...], ...]  # of each rank

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, line)) for line in self.lines)


def programmed(schedule: Schedule, ahead: int, shards: bool = False) -> Program:
    """All passes.

    Args:
        schedule: that `validate` has seen.
        ahead: receives that are begun before they are needed, on each channel.
        shards: parameters are in shards, and gathered stage by stage.
    """
    lines = with_messages(schedule, ahead)
    lines = [list(with_reduction(line)) for line in lines]
    if shards:
        lines = [list(with_gathering(line, GATHERED)) for line in lines]
    return Program(schedule, tuple(map(tuple, lines)))


def with_messages(schedule: Schedule, ahead: int) -> list[list[Step]]:
    """Send what another rank needs as soon as it is made; receive in the order in which it is sent, a little ahead.

    So many are begun on each channel before anything else: `ahead` is what `validate` calls room.
    """
    sent = channels(schedule)
    place = {result: (channel, at) for channel, results in sent.items() for at, result in enumerate(results)}
    begun = dict.fromkeys(sent, 0)

    def receive(channel: Channel, until: int) -> Iterator[Step]:
        yield from (Receive(result, channel.source) for result in sent[channel][begun[channel] : until])
        begun[channel] = max(begun[channel], until)

    def line(rank: int) -> Iterator[Step]:
        for channel in sent:
            if channel.target == rank:
                yield from receive(channel, ahead)
        for action in schedule.lines[rank]:
            if (needed := needs(schedule, action)) in place and action.kind is not Kind.WEIGHT:
                channel, at = place[needed]
                yield from receive(channel, at + 1 + ahead)
            yield action
            if (made := makes(action)) in place:
                yield Send(made, place[made][0].target)

    return [list(line(rank)) for rank in range(schedule.ranks)]


def with_reduction(line: Sequence[Step]) -> Iterator[Step]:
    """Mark the last action that brings gradients, of each stage: summing earlier would have to be done again."""
    last = {step.stage: at for at, step in enumerate(line) if brings_gradients(step)}
    for at, step in enumerate(line):
        yield Reduce(step) if brings_gradients(step) and last[step.stage] == at else step


def with_gathering(line: Sequence[Step], most: int) -> Iterator[Step]:
    """Keep those stages whole that are needed next, and no others: so the second is gathered while the first computes.

    How often a stage is gathered is up to the order: once for each stretch of time in which it is among the next.

    Args:
        line: of a rank.
        most: stages that are whole at a time.
    """
    whole: list[int] = []
    for at, step in enumerate(line):
        if stage_of(step) is not None:
            soon = _next_stages(islice(line, at, None), most)
            yield from (Free(other) for other in whole if other not in soon)
            yield from (Gather(other) for other in soon if other not in whole)
            whole = soon
        yield step
    yield from (Free(stage) for stage in whole)


def _next_stages(steps: Iterable[Step], most: int) -> list[int]:
    """The stages that are used first, in the order of their use."""
    found: list[int] = []
    for step in steps:
        stage = stage_of(step)
        if stage is not None and stage not in found:
            found.append(stage)
            if len(found) == most:
                break
    return found


def stage_of(step: Step) -> int | None:
    """The stage that a step computes; None if it computes nothing."""
    if isinstance(step, Reduce):
        return step.action.stage
    return step.stage if isinstance(step, Action) else None


def brings_gradients(step: Step) -> bool:
    """Whether a step ends the backward of a stage for a micro-batch."""
    return isinstance(step, Action) and step.kind in (Kind.BACKWARD, Kind.WEIGHT)


def readers(schedule: Schedule) -> dict[Result, int]:
    """The rank that needs what another action has made, itself included."""
    return {
        needed: rank
        for rank, line in enumerate(schedule.lines)
        for action in line
        if (needed := needs(schedule, action)) and needed.stage != action.stage
    }


def channels(schedule: Schedule) -> dict[Channel, list[Result]]:
    """What passes between ranks, on each channel in the order in which it is sent."""
    found: dict[Channel, list[Result]] = {}
    reader = readers(schedule)
    for source, line in enumerate(schedule.lines):
        for result in map(makes, line):
            if result and reader.get(result, source) != source:
                found.setdefault(Channel(source, reader[result]), []).append(result)
    return found
