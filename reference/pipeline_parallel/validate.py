"""Prove of any schedule that it computes a step.

    complete    every micro-batch passes every stage of its route once forward and once backward, on the stage's rank
    ordered     nothing waits forever: not with sends that return at once, not with sends that block, and not where
                messages of a channel run one after the other, as NCCL's do (`ordering`)
    memory      how many activations each rank holds at most

Sends that block return when the receiver has room. How much room that takes, in messages that arrive before they are
needed, is a property of the order: `room`. GPipe needs none, 1F1B a place for one message from each neighbour, and a
breadth-first order a place for m / p of them: rank 0 still sends its first stage's, while the last sends to its second.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reference.errors import BadInput

from .ordering import stuck
from .passes import Channel, channels, programmed
from .schedule import Action, Kind, Schedule
from .simulate import Deadlock, Result, makes, needs, simulate
from .walk import Walk


@dataclass(frozen=True)
class Proof:
    """What holds of a schedule."""

    activations: tuple[int, ...]  # the most that each rank holds, of one stage and one micro-batch each
    room: int  # messages that may have to wait on a channel, where sends block


def validate(schedule: Schedule) -> Proof:
    """See that a schedule computes a step: of training, or, where it has no backward at all, of inference.

    Raises:
        BadInput: if it does not, with the first action that is missing, twice, misplaced or waiting forever.
    """
    _require_complete(schedule)
    try:
        simulate(schedule)
    except Deadlock as deadlock:
        raise BadInput(f"this order never ends: {deadlock}") from None
    lines = _with_sends(schedule)
    room = next(room for room in range(schedule.micro_batches * schedule.stages + 1) if _end(lines, room))
    if waiting := stuck(programmed(schedule, max(1, room))):
        raise BadInput(f"messages of this order wait for each other: {waiting}")
    return Proof(tuple(most_activations(line) for line in schedule.lines), room)


def most_activations(line: tuple[Action, ...]) -> int:
    """How many activations a rank holds at most: from forward to the end of backward, of a stage and a micro-batch."""
    held = most = 0
    for action in line:
        held += (action.kind is Kind.FORWARD) - (action.kind in (Kind.BACKWARD, Kind.WEIGHT))
        most = max(most, held)
    return most


def _require_complete(schedule: Schedule) -> None:
    if not schedule.lines or not schedule.routes:
        raise BadInput(f"{schedule.ranks} ranks and {schedule.micro_batches} micro-batches make no step")
    for micro_batch, route in enumerate(schedule.routes):
        if not route or len(set(route)) < len(route):
            raise BadInput(f"the route of micro-batch {micro_batch}, {route}, must pass a stage or more, each once")
        if unknown := [stage for stage in route if not 0 <= stage < schedule.stages]:
            raise BadInput(f"micro-batch {micro_batch} passes stage {unknown[0]}, which is on no rank")
    done = Counter(action for line in schedule.lines for action in line)
    for rank, line in enumerate(schedule.lines):
        for action in line:
            micro_batch = action.micro_batch
            if not 0 <= micro_batch < schedule.micro_batches or action.stage not in schedule.neighbours[micro_batch]:
                raise BadInput(f"rank {rank} computes {action}, and no micro-batch takes that way")
            if schedule.placement[action.stage] != rank:
                there = schedule.placement[action.stage]
                raise BadInput(f"rank {rank} computes {action}, and stage {action.stage} is on rank {there}")
            if done[action] > 1:
                raise BadInput(f"{action} is computed {done[action]} times")
    trains = any(action.kind is not Kind.FORWARD for action in done)
    for micro_batch, route in enumerate(schedule.routes):
        for stage in route:
            forward, backward, of_input, of_weight = (done[Action(kind, stage, micro_batch)] for kind in Kind)
            if not forward:
                raise BadInput(f"F{stage}.{micro_batch} is missing")
            if trains and (backward, of_input, of_weight) not in ((1, 0, 0), (0, 1, 1)):
                raise BadInput(
                    f"backward of stage {stage} on micro-batch {micro_batch} must be B{stage}.{micro_batch}, "
                    f"or I{stage}.{micro_batch} and W{stage}.{micro_batch}"
                )


def ends(schedule: Schedule, room: int) -> bool:
    """Whether a schedule ends if a send returns only when the receiver waits for it, or has room for it.

    Args:
        schedule: a complete one.
        room: messages for which a receiver has a place, on each channel, before it needs them.
    """
    return _end(_with_sends(schedule), room)


def _end(lines: Sequence[Sequence["_Compute | _Send"]], room: int) -> bool:
    ranks = _Blocking(lines, room)
    ranks.walk.go(ranks.can, ranks.does)
    return not ranks.walk.waiting


class _Compute(NamedTuple):
    """An action, by what it needs and what that came over, if it came from another rank."""

    needed: Result | None
    channel: Channel | None
    made: Result | None


class _Send(NamedTuple):
    """What another rank needs leaves; the rank waits until there is room for it, or the other waits for it."""

    result: Result
    channel: Channel


def _with_sends(schedule: Schedule) -> list[list[_Compute | _Send]]:
    """The lines of a schedule, in which what another rank needs is sent as soon as it is made."""
    way = {result: channel for channel, results in channels(schedule).items() for result in results}

    def steps(rank: int, line: Sequence[Action]) -> Iterator[_Compute | _Send]:
        for action in line:
            needed, made = needs(schedule, action), makes(action)
            source = schedule.placement[needed.stage] if needed else rank
            yield _Compute(needed, Channel(source, rank) if source != rank else None, made)
            if made in way:
                yield _Send(made, way[made])

    return [list(steps(rank, line)) for rank, line in enumerate(schedule.lines)]


class _Blocking:
    """Ranks whose sends block: what is here, and what waits on a channel until it is used."""

    def __init__(self, lines: Sequence[Sequence[_Compute | _Send]], room: int) -> None:
        self.walk, self.room = Walk(lines), room
        self.here: list[set[Result]] = [set() for _ in lines]
        self.arrived: Counter[Channel] = Counter()  # messages that take up room

    def can(self, rank: int, step: _Compute | _Send) -> bool:
        """Whether an action has what it needs; whether the receiver takes a message."""
        if isinstance(step, _Compute):
            return step.needed is None or step.needed in self.here[rank]
        return self.arrived[step.channel] < self.room or self.awaited_by(step.channel.target) == step.result

    def does(self, rank: int, step: _Compute | _Send) -> None:
        """What has come is used, and what was made is here; what was sent is there."""
        if isinstance(step, _Send):
            self.arrived[step.channel] += 1
            self.here[step.channel.target].add(step.result)
            return
        if step.channel:
            self.arrived[step.channel] -= 1
        if step.made:
            self.here[rank].add(step.made)

    def awaited_by(self, rank: int) -> Result | None:
        """What a rank waits for, if it waits for anything but room."""
        step = self.walk.next(rank)
        return step.needed if isinstance(step, _Compute) else None
