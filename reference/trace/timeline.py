"""What each rank did when: one form for a measured run, for a replay on a model, and for a plan."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from operator import itemgetter
from pathlib import Path


class SpanKind(StrEnum):
    """What a rank does during a span."""

    COMMUNICATION = "communication"  # a message of this rank is in flight
    WAITING = "waiting"  # held up by a call whose message is not in flight yet
    STUCK = "stuck"  # held up to the end of the trace


@dataclass(frozen=True, slots=True)
class Span:
    """One rank from `begin` to `end`, in seconds. A rank's spans do not overlap; where none is, it works or is done."""

    rank: int
    begin: float
    end: float
    kind: SpanKind
    label: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message from `src`, sent at `begin`, to `dst`, received at `end`, in seconds."""

    src: int
    dst: int
    begin: float
    end: float
    bytes: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes of spans, and the transfers between them.

    `title` says where the times come from: "measured", or the name of the modelled network.
    """

    world_size: int
    spans: tuple[Span, ...]  # by rank, then by time
    transfers: tuple[Transfer, ...]  # by begin
    duration: float  # seconds
    title: str = ""

    def seconds(self, rank: int, kind: SpanKind) -> float:
        """Seconds that `rank` spends in spans of `kind`."""
        return sum(span.end - span.begin for span in self.spans if span.rank == rank and span.kind is kind)

    @property
    def waiting(self) -> list[float]:
        """Seconds that each rank is held up, stuck ones included."""
        return [self.seconds(r, SpanKind.WAITING) + self.seconds(r, SpanKind.STUCK) for r in range(self.world_size)]

    def to_dict(self) -> dict:
        """Plain values for JSON; `Timeline.from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Timeline":
        """The timeline that `to_dict` wrote."""
        spans = tuple(Span(**{**span, "kind": SpanKind(span["kind"])}) for span in values["spans"])
        transfers = tuple(Transfer(**transfer) for transfer in values["transfers"])
        return cls(**{**values, "spans": spans, "transfers": transfers})

    def to_chrome(self) -> dict:
        """In the trace event format, for ui.perfetto.dev and chrome://tracing."""
        from .chrome import of_timeline

        return of_timeline(self)

    def save(self, path: str | Path) -> Path:
        """Write `to_chrome()` as JSON to `path`; open the file at ui.perfetto.dev."""
        from .chrome import write

        return write(self.to_chrome(), path)


Interval = tuple[float, float, str]  # begin, end, label

BEYOND = 0.25  # calls that never returned are drawn for this part of the duration beyond the last thing that happened


def horizon(last: float, stuck: bool) -> float:
    """Where a timeline ends, in seconds: beyond the `last` moment if calls are stuck, so that one sees it."""
    if not stuck:
        return last
    return last * (1 + BEYOND) or 1e-6


def lane(rank: int, moving: Iterable[Interval], held: Iterable[Interval], stuck: Iterable[Interval]) -> list[Span]:
    """One rank's spans. Where intervals overlap, communication hides waiting, and waiting hides being stuck.

    Args:
        moving: when a message of this rank is in flight.
        held: when the rank is held up by a call that returned later.
        stuck: when it is held up by a call that never returned.
    """
    spans: list[Span] = []
    for kind, intervals in ((SpanKind.COMMUNICATION, moving), (SpanKind.WAITING, held), (SpanKind.STUCK, stuck)):
        taken = sorted((span.begin, span.end) for span in spans)
        for begin, end, label in _union(intervals):
            spans += [Span(rank, b, e, kind, label) for b, e in _outside(begin, end, taken)]
    return sorted(spans, key=lambda span: (span.begin, span.end))


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge those that overlap. Those that only touch stay apart: they are different steps."""
    merged: list[Interval] = []
    for begin, end, label in sorted(intervals):
        if merged and begin < merged[-1][1]:
            last_begin, last_end, last_label = merged[-1]
            labels = last_label.split(", ")
            merged[-1] = (last_begin, max(last_end, end), last_label if label in labels else f"{last_label}, {label}")
        elif end > begin:
            merged.append((begin, end, label))
    return merged


def _outside(begin: float, end: float, taken: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of an interval that no taken one covers. `taken` is sorted and has no overlaps."""
    parts = []
    first = bisect_right(taken, begin, key=itemgetter(1))  # the first that ends later
    for at in range(first, len(taken)):
        taken_begin, taken_end = taken[at]
        if taken_begin >= end:
            break
        if taken_begin > begin:
            parts.append((begin, taken_begin))
        begin = max(begin, taken_end)
    if begin < end:
        parts.append((begin, end))
    return parts
