"""What all ranks said, and what it cost: `Trace`.

Bytes, messages, steps and replayed time follow from the order of each rank's own calls and from nothing else. Clocks
are used only by `timeline()`. So the same program gives the same numbers in every run.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import chrome, measured
from .events import Event, Op
from .native import COUNTED_AS, Lowered, lower
from .network import Network
from .replay import Price, ReplayRun, replay, run
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class Message:
    """A send that met its receive. Of a native collective: one message of the algorithm it is counted as.

    `step` is 1 for a message that depends on no other; otherwise one more than the greatest step of those that had to
    be complete before it was sent or received. n-1 blocking sends in a row are n-1 steps; one batch of them is one.
    """

    send: Event
    recv: Event
    bytes: int
    step: int
    algorithm: str  # "" between a send and a receive

    @property
    def src(self) -> int:
        """Global rank of the sender."""
        return self.send.rank

    @property
    def dst(self) -> int:
        """Global rank of the receiver."""
        return self.recv.rank


@dataclass(frozen=True)
class Trace:
    """The calls of every rank. `events[rank]` is in program order, that is by `posted`.

    A trace may be partial: of ranks that died or wait forever. Calls that never met their other side are `unmatched`.
    `returned` are the ranks whose function came to its end: whatever they posted, they wait for nothing.
    """

    world_size: int
    events: tuple[tuple[Event, ...], ...]
    returned: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if len(self.events) != self.world_size:
            raise ValueError(f"a trace of {self.world_size} ranks has events of {len(self.events)}")
        in_order = tuple(tuple(sorted(events, key=lambda event: event.posted)) for events in self.events)
        object.__setattr__(self, "events", in_order)

    def __getstate__(self) -> dict:
        # what is derived is derived again
        return {"world_size": self.world_size, "events": self.events, "returned": self.returned}

    @cached_property
    def _lowered(self) -> tuple[tuple[Lowered, ...], ...]:
        return lower(self.events)

    @cached_property
    def _stepped(self) -> ReplayRun:
        """The run on a model where every message takes one unit and none is in another's way."""
        return run(self._lowered, lambda src, dst, size: Price(0, 1))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All messages that arrived, by step, then by sender."""
        return tuple(
            Message(flight.send.event, flight.recv.event, flight.bytes, flight.end, flight.send.call.algorithm)
            for flight in self._stepped.flights
        )

    @property
    def steps(self) -> int:
        """Length of the longest chain of messages that depend on each other."""
        return max((message.step for message in self.messages), default=0)

    @property
    def bytes_sent(self) -> list[int]:
        """Bytes that arrived from each rank."""
        sent = [0] * self.world_size
        for message in self.messages:
            sent[message.src] += message.bytes
        return sent

    @property
    def bytes_received(self) -> list[int]:
        """Bytes that arrived at each rank."""
        received = [0] * self.world_size
        for message in self.messages:
            received[message.dst] += message.bytes
        return received

    @cached_property
    def unmatched(self) -> tuple[Event, ...]:
        """Calls that lack a message: a send not received, a receive not answered, a collective that a rank left out."""
        halves: dict[tuple[int, int], int] = {}
        for flight in self._stepped.flights:
            for event in (flight.send.event, flight.recv.event):
                key = (event.rank, event.posted)
                halves[key] = halves.get(key, 0) + 1
        return tuple(
            call.event
            for own in self._lowered
            for call in own
            if halves.get((call.event.rank, call.event.posted), 0) < sum(len(halves_) for halves_ in call.rounds)
        )

    @property
    def counted_as(self) -> dict[Op, str]:
        """The algorithm that each native collective in this trace is counted as."""
        present = {event.op for events in self.events for event in events}
        return {op: name for op, (name, _) in COUNTED_AS.items() if op in present}

    @property
    def duration(self) -> float:
        """Seconds from the beginning of the trace to the last moment it has seen."""
        return max((e.begin if e.end is None else e.end for events in self.events for e in events), default=0.0)

    def replay(self, network: Network) -> Timeline:
        """The same messages on `network`, computing nothing: see `replay.py` for the rules."""
        if network.world_size is not None and network.world_size < self.world_size:
            raise ValueError(f"the network has {network.world_size} ranks, the trace has {self.world_size}")
        return replay(self._lowered, network, self.returned)

    def timeline(self) -> Timeline:
        """What was measured: real clocks, so no two runs are alike.

        A rank waits while the other side of its call is not there yet; from then on it communicates. What a native
        collective does inside is not seen: its messages are not drawn.
        """
        waiting = [event for event in self.unmatched if event.rank not in self.returned]
        return measured.timeline(self._lowered, self.messages, waiting, self.duration)

    def to_chrome(self) -> dict:
        """The measured calls in the trace event format, for ui.perfetto.dev. A replay has the same method."""
        return chrome.of_trace(self)

    def save(self, path: str | Path) -> Path:
        """Write `to_chrome()` as JSON to `path`; open the file at ui.perfetto.dev."""
        return chrome.write(self.to_chrome(), path)

    def __str__(self) -> str:
        sent = self.bytes_sent
        counts = {"rank": self.world_size, "message": len(self.messages), "step": self.steps, "byte": sum(sent)}
        lines = [", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())]
        for rank, received in enumerate(self.bytes_received):
            lines.append(f"rank {rank} sent {sent[rank]} B, received {received} B")
        lines += [f"{op} counted as {name}" for op, name in self.counted_as.items()]
        lines += [f"rank {e.rank} {e.file}:{e.line} {e.op}: never completed" for e in self.unmatched]
        return "\n".join(lines)
