"""Stragglers, from a trace: which rank makes the others wait, at which call, and what the step would gain without it.

At a collective all ranks wait for the last one to come, and a trace knows when each came. But the last to come need not
be the culprit: it may have waited for another one before. So each rank's time is divided into its own work and waiting:

    rank 0   work |....wait....| all_reduce | work ...
    rank 1   work work work work| all_reduce | work ...       late by its own work: the straggler
    rank 2   work |....wait....| all_reduce | work ...

A rank's excess at a meeting is its own work since its call before, less the median of what the others needed. What the
step would gain is found by playing the trace once more, with that rank no slower than the median: a delay hides where
another rank is just as late, and passes on to ranks that were never in a group with the straggler.

How slow the slowest of many is in the mean is in `reference.planning.stragglers`. Llama 3 (2024, sec. 3.3.4) names
stragglers so, from a flight recorder of collectives.

Of calls that a rank does not wait for at once (`async_op=True`) a trace does not know when the rank began to wait: work
that hides behind a message counts with it. Names are then right, and the gain is a bound from below.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from reference.errors import BadInput
from reference.trace import Event, Trace

EventKey = tuple[int, int]  # rank and tick: which event
SHARE = 0.05  # of the trace's duration: less than that is noise


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: global rank.
        excess: seconds by which its own work is longer than the median of the ranks that it meets, in all.
        waited: seconds that all others together waited for it, where it was the last to come.
        gain: seconds by which the trace would be shorter, if it worked no longer than the median.
        at: its call where the others waited longest.
    """

    rank: int
    excess: float
    waited: float
    gain: float
    at: Event | None

    def __str__(self) -> str:
        where = f", most at {self.at.file}:{self.at.line} {self.at.op}" if self.at else ""
        return (
            f"rank {self.rank} works {self.excess:.3f} s longer than the median, others wait {self.waited:.3f} s for "
            f"it{where}; without that the trace would be {self.gain:.3f} s shorter"
        )


def stragglers(trace: Trace, share: float = SHARE) -> list[Straggler]:
    """The ranks without whose excess the trace would be shorter, the one with the largest gain first.

    Args:
        trace: of ranks that all came to their end.
        share: of the trace's duration that must be gained, for a rank to be named.

    Raises:
        BadInput: if a call was never answered: then a rank is stuck, which no rank's speed explains.
    """
    if trace.unmatched:
        event = trace.unmatched[0]
        where = f"{event.op} at {event.file}:{event.line}"
        raise BadInput(f"rank {event.rank} waits in {where} forever: that is no straggler")
    played = Played(trace)
    found = [played.straggler(rank) for rank in range(trace.world_size)]
    named = [each for each in found if each.gain > share * played.duration]
    return sorted(named, key=lambda each: -each.gain)


class Played:
    """A trace as work and meetings, to be played with other times of work.

    A meeting is a collective, or a message. It begins when all who take part have come; a rank leaves it as long after
    that as it did in the trace.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.meetings = meetings(trace)
        self.ticks = [ticks_of(events) for events in trace.events]
        self.work = {
            key(event): moment - before
            for of_rank in self.ticks
            for (before, _, _), (moment, event, is_end) in zip([(0.0, None, False), *of_rank], of_rank, strict=False)
            if not is_end
        }
        self.duration = self.play(self.work)

    def straggler(self, rank: int) -> Straggler:
        """What there is to say of a rank."""
        excess = {key(event): self._excess(event) for event in self.trace.events[rank]}
        waits = {key(event): self._waited_for(event) for event in self.trace.events[rank]}
        at = max(self.trace.events[rank], key=lambda event: waits[key(event)], default=None)
        shorter = {which: seconds - excess.get(which, 0.0) for which, seconds in self.work.items()}
        gain = self.duration - self.play(shorter)
        return Straggler(rank, sum(excess.values()), sum(waits.values()), gain, at if at and waits[key(at)] else None)

    def play(self, work: Mapping[EventKey, float]) -> float:
        """Seconds until the last rank is done, where ranks work so long before each of their calls."""
        came: dict[EventKey, float] = {}
        now, at, moved = [0.0] * len(self.ticks), [0] * len(self.ticks), True
        while moved:
            moved = False
            for rank, of_rank in enumerate(self.ticks):
                while at[rank] < len(of_rank):
                    before = of_rank[at[rank] - 1][0] if at[rank] else 0.0
                    moment, event, is_end = of_rank[at[rank]]
                    others = self.meetings[key(event)]
                    if is_end and any(key(each) not in came for each in others):
                        break
                    if is_end:
                        tail = moment - max(before, max(each.begin for each in others))
                        now[rank] = max(now[rank], max(came[key(each)] for each in others)) + max(tail, 0.0)
                    else:
                        now[rank] = came[key(event)] = now[rank] + work[key(event)]
                    at[rank], moved = at[rank] + 1, True
        return max(now, default=0.0)

    def _excess(self, event: Event) -> float:
        others = [self.work[key(each)] for each in self.meetings[key(event)] if each.rank != event.rank]
        if event.op.point_to_point or not others:
            return 0.0  # the other side of a message does other work
        return max(0.0, self.work[key(event)] - median(others))

    def _waited_for(self, event: Event) -> float:
        others = [each for each in self.meetings[key(event)] if each.rank != event.rank]
        if any(each.begin > event.begin for each in others):
            return 0.0
        return sum(event.begin - each.begin for each in others)


def key(event: Event) -> EventKey:
    """Which event of a trace this is."""
    return event.rank, event.posted


def ticks_of(events: tuple[Event, ...]) -> list[tuple[float, Event, bool]]:
    """A rank's calls and the ends of their waits, in its own order: moment, event, and whether it is an end."""
    posted = [(event.posted, event.begin, event, False) for event in events]
    ended = [(event.completed, event.end, event, True) for event in events if event.completed is not None]
    ordered = sorted([*posted, *ended], key=lambda tick: tick[0])
    return [(moment, event, is_end) for _, moment, event, is_end in ordered]


def meetings(trace: Trace) -> dict[EventKey, tuple[Event, ...]]:
    """For each event, all those that meet in it: the k-th collective of a group, or the two sides of a message."""
    together: dict[tuple, list[Event]] = defaultdict(list)
    for events in trace.events:
        seen: Counter[tuple] = Counter()
        for event in events:
            group = (event.group, event.group_name)
            if not event.op.point_to_point:
                together[*group, seen[group]].append(event)
                seen[group] += 1
    found = {key(event): tuple(met) for met in together.values() for event in met}
    for message in trace.messages:
        if not message.algorithm:
            found[key(message.send)] = found[key(message.recv)] = (message.send, message.recv)
    return found
