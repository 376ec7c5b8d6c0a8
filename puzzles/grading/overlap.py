"""How much of the communication hides behind work: a step's time on a model, counted, not measured.

A trace says in which order a rank posted its messages and waited for them, and nothing of what it computed between.
Drives fill the gap: `Work` notes how long a piece of work would take, and at which tick it was done. Both together run
again on a modelled network, as `reference.trace.replay` tells, where a piece of work is a message from a rank to
itself, which keeps no other rank waiting. So the same program takes the same time in every run, on a busy machine, too.

    drive       work = Work(); ...; work(seconds); ...; return {..., **work.notes}
    puzzle      Budget(Measure.MICROSECONDS, target=lambda case: 1e6 * ..., why="...")
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from reference.trace import Event, Network, Op, Trace
from reference.trace.native import Half, Lowered, lower
from reference.trace.replay import Price, run

NAME = "work"  # under which a drive reports its notes
NETWORK = Network.uniform(alpha=10e-6, beta=100e6, name="a slow link")
"""Where steps are timed: 10 µs and 100 MB/s, so that tiny models have something to hide."""

Note = tuple[int, float]
"""A tick of a rank, and the seconds of work that it has done since its call before that tick."""


class Work:
    """Notes what a rank computes, for the owner to add to the trace. Call it where the work would be done."""

    def __init__(self) -> None:
        self._notes: list[Note] = []

    def __call__(self, seconds: float) -> None:
        """Some work is done here that would take so long."""
        self._notes.append((dist.group.WORLD.recorder.tick, seconds))

    @property
    def notes(self) -> dict[str, list[Note]]:
        """What a drive adds to its report."""
        return {NAME: self._notes}


def notes_of(values: Mapping[str, Any]) -> list[Note]:
    """What `Work` has noted, out of a rank's report; nothing where that is no list of notes."""
    try:
        return [(int(tick), float(seconds)) for tick, seconds in values.get(NAME, ())]
    except (TypeError, ValueError):
        return []


def microseconds(trace: Trace, work: Mapping[int, Sequence[Note]], network: Network = NETWORK) -> float:
    """How long a case takes on `network`, from the first call or piece of work to the end of the last.

    Args:
        trace: of the case.
        work: the notes of each rank, by global rank.
        network: which takes the time for messages that the model says.
    """
    spread = 1 + 2 * max(map(len, work.values()), default=0)  # ticks, to make room for work between two calls
    calls = [[*own] for own in lower([[_later(event, spread) for event in events] for events in trace.events])]
    for rank, notes in work.items():
        calls[rank] += _as_messages(rank, notes, spread)

    def cost(src: int, dst: int, size: int) -> Price:
        if src == dst:
            return Price(0, size)
        return Price(0, _nanoseconds(network.time(src, dst, size)), network.ports(src, dst))

    return max((flight.end for flight in run(calls, cost).flights), default=0) / 1000


def _later(event: Event, spread: int) -> Event:
    """The event where every tick is the last of `spread` ticks."""
    completed = None if event.completed is None else (event.completed + 1) * spread
    return replace(event, posted=(event.posted + 1) * spread, completed=completed)


def _as_messages(rank: int, notes: Sequence[Note], spread: int) -> list[Lowered]:
    """Pieces of work as messages from a rank to itself, which it waits for at once. Nanoseconds stand for bytes."""
    calls = []
    for number, (tick, seconds) in enumerate(notes):
        posted = tick * spread + 1 + 2 * number  # after the calls with smaller ticks, before that of this tick
        channel = (NAME, rank, number)
        halves = (Half(True, rank, _nanoseconds(seconds), channel), Half(False, rank, 0, channel))
        event = Event(rank, Op.SEND, (rank,), rank, 0, (), "", 0, (), "", "", 0, posted, posted + 1, begin=0.0, end=0.0)
        calls.append(Lowered(event, (halves,), "", (event,)))
    return calls


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
