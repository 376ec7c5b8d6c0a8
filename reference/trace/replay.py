"""Run a trace again on a model: nothing is computed, only messages take time, and every run gives the same times.

The rules:
- A rank goes through its own calls in program order, in no time, until a wait holds it up.
- A message starts when both sides have posted it and every port that it needs is free. It keeps them busy to its end.
- But through ports of links that carry several messages at once (`Network.flows`) they flow as `shared_ports` says.
- Messages that could start at the same moment do so by (moment they were ready, sender, sender's tick).
- A wait returns when all messages of its call have ended.
- First come, first served is not the best order: where messages are in each other's way, a slower link may let another
  one go first, and make the whole shorter.

With the times and ports of a network this replays the trace. With one unit for every message and no ports, the end of a
message is its step: one more than the step of the last message that had to be complete before it was sent or received.

Times are integers, in 2^-80 seconds: sums of integers do not depend on their order, so "the same moment" has a
meaning.

A wait that returned in the real run may never return here: a small message that gloo buffered lets its sender continue
before any rank receives. When nothing else moves, such sends count as returned, so that what ran also replays.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from .events import Event, Op
from .native import Half, Lowered, describe
from .network import Network
from .shared_ports import SharedPorts
from .timeline import Interval, Timeline, Transfer, horizon, lane

SECOND = 1 << 80  # a float duration above 8 ns is exact in this unit


class Price(NamedTuple):
    """What a message costs, in units of time."""

    latency: int
    transmission: int  # of all its bytes, one after the other
    ports: tuple = ()  # that it keeps busy, or shares
    flows: bool = False  # True: it shares them
    burst: int = 0  # of a shared port's token bucket, as the time in which it fills
    buffer: int = 0  # of the sender, as the time in which it empties


Cost = Callable[[int, int, int], Price]
"""(src, dst, bytes) -> what the message costs."""


@dataclass(slots=True, eq=False)
class Flight:
    """A message on the model: the two calls that it joins, and when it flew."""

    src: int
    dst: int
    bytes: int
    send: "_Progress"
    recv: "_Progress"
    order: tuple[int, int]  # the sender's tick and round
    posted: int = 0  # sides that are there, 0 to 2
    price: Price | None = None  # from when it is posted by both
    ready: int | None = None  # None: never happened
    begin: int | None = None
    end: int | None = None
    buffered: bool = False  # True: its sender waits for it no longer

    @property
    def priority(self) -> tuple:
        """Which one starts first when several could."""
        return (self.ready, self.src, *self.order)


@dataclass(slots=True, eq=False)
class _Progress:
    """How far a call has come."""

    call: Lowered
    rounds: list[list[Flight | None]]  # None: no other side
    round: int = -1
    missing: int = 0  # halves of this round that are not done
    posted: int | None = None  # units; None: the rank never came so far
    finished: int | None = None

    @property
    def event(self) -> Event:
        return self.call.event


@dataclass(slots=True)
class _Rank:
    """One rank's program: its posts and waits, by tick."""

    program: list[tuple[int, bool, _Progress]]  # tick, whether it is a wait, the call
    at: int = 0
    moved: int = 0  # when it last went on
    blocked_since: int | None = None
    blocked: list[tuple[int, int, Lowered]] = field(default_factory=list)  # begin, end, what it waited for

    @property
    def awaited(self) -> _Progress:
        """The call that the rank waits for."""
        return self.program[self.at][2]


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What a model run gave, in units of the cost."""

    flights: list[Flight]  # those that happened, in order of their end
    blocked: list[list[tuple[int, int, Lowered]]]  # for each rank: begin, end, the call it waited for
    stuck: list[tuple[int, Lowered]]  # when its rank last went on, and the call that never finished


def run(calls: Sequence[Sequence[Lowered]], cost: Cost) -> ReplayRun:
    """Run the calls of all ranks on a model of what a message costs."""
    model = _Model(calls, cost)
    model.go()
    flown = sorted((f for f in model.flights if f.end is not None), key=lambda f: (f.end, f.begin, f.src, f.order))
    return ReplayRun(flown, [rank.blocked for rank in model.ranks], model.stuck)


def replay(calls: Sequence[Sequence[Lowered]], network: Network, returned: frozenset[int] = frozenset()) -> Timeline:
    """Run the calls of all ranks on `network`, and say what each rank did when. `returned` ranks are never stuck."""

    def cost(src: int, dst: int, size: int) -> Price:
        link = network.link(src, dst)
        latency, whole = int(link.alpha * SECOND), int(link.time(size) * SECOND)
        burst, buffer = (int(size / link.beta * SECOND) for size in (link.burst, link.buffer))
        return Price(latency, whole - latency, network.ports(src, dst), network.flows(src, dst), burst, buffer)

    result = run(calls, cost)
    waiting = [(since, call) for since, call in result.stuck if call.event.rank not in returned]
    return _timeline(result, waiting, str(network))


def _timeline(result: ReplayRun, waiting: list[tuple[int, Lowered]], title: str) -> Timeline:
    world_size = len(result.blocked)
    moving: list[list[Interval]] = [[] for _ in range(world_size)]
    stuck: list[list[Interval]] = [[] for _ in range(world_size)]
    transfers = []
    for flight in result.flights:
        begin, end = flight.begin / SECOND, flight.end / SECOND
        native = flight.send.event.op.value if flight.send.call.algorithm else ""
        transfers.append(Transfer(flight.src, flight.dst, begin, end, flight.bytes, native))
        for call in (flight.send.call, flight.recv.call):
            moving[call.event.rank].append((begin, end, describe(call)))
    last = max((transfer.end for transfer in transfers), default=0.0)
    duration = horizon(last, stuck=bool(waiting))
    for since, call in waiting:
        stuck[call.event.rank].append((since / SECOND, duration, describe(call)))
    spans = []
    for rank, blocked in enumerate(result.blocked):
        held = [(begin / SECOND, end / SECOND, describe(call)) for begin, end, call in blocked]
        spans += lane(rank, moving[rank], held, stuck[rank])
    transfers.sort(key=lambda transfer: (transfer.begin, transfer.src, transfer.dst))
    return Timeline(world_size, tuple(spans), tuple(transfers), duration, title)


def join(calls: Sequence[Sequence[Lowered]]) -> tuple[list[list[_Progress]], list[Flight]]:
    """Match sends with receives, first in, first out, on each channel."""
    progress = [[_Progress(call, [[None] * len(halves) for halves in call.rounds]) for call in own] for own in calls]
    sends: dict[tuple, deque] = defaultdict(deque)
    receives: dict[tuple, deque] = defaultdict(deque)
    for own in progress:
        for step in own:
            for r, halves in enumerate(step.call.rounds):
                for h, half in enumerate(halves):
                    (sends if half.sends else receives)[half.channel].append((step, r, h, half))
    flights = []
    for channel, waiting in sends.items():
        for (send, r, h, half), (recv, rr, rh, _) in zip(waiting, receives[channel], strict=False):
            flight = _flight(send, recv, half, r)
            send.rounds[r][h] = recv.rounds[rr][rh] = flight
            flights.append(flight)
    return progress, flights


def _flight(send: _Progress, recv: _Progress, half: Half, round_: int) -> Flight:
    return Flight(send.event.rank, recv.event.rank, half.bytes, send, recv, (send.event.posted, round_))


class _Model:
    """The state of a run. `go` moves it to its end."""

    def __init__(self, calls: Sequence[Sequence[Lowered]], cost: Cost) -> None:
        self.cost = cost
        self.progress, self.flights = join(calls)
        self.ranks = [_Rank(_program(own)) for own in self.progress]
        self.now = 0
        self.in_flight: list[tuple[int, int, Flight]] = []  # heap: end, order of start, flight
        self.started = 0
        self.fresh: list[Flight] = []  # became ready since the last look
        self.queued: dict[tuple, dict[Flight, None]] = defaultdict(dict)  # port -> flights that wait for it
        self.busy: set[tuple] = set()
        self.shared = SharedPorts()

    def go(self) -> None:
        """Let time pass until nothing moves any more."""
        freed: list[tuple] = []
        for rank in self.ranks:
            self._advance(rank)
        while True:
            self._start(freed)
            if self.in_flight or self.shared.left:
                freed = self._land() if self._flow() else []
            elif not self._let_go():
                return

    @property
    def stuck(self) -> list[tuple[int, Lowered]]:
        """Calls that were posted and finished neither here nor in the real run, with when their rank last went on."""
        open_ = [p for own in self.progress for p in own if p.finished is None and p.event.completed is None]
        return [(self.ranks[p.event.rank].moved, p.call) for p in open_ if p.posted is not None]

    def _advance(self, rank: _Rank) -> None:
        """Continue the rank's program until a wait that has not ended."""
        while rank.at < len(rank.program):
            _, waits, progress = rank.program[rank.at]
            if not waits:
                progress.posted = self.now
                self._next_round(progress)
            elif progress.finished is None:
                if rank.blocked_since is None:
                    rank.blocked_since = self.now
                return
            elif rank.blocked_since is not None:
                rank.blocked.append((rank.blocked_since, self.now, progress.call))
                rank.blocked_since = None
            rank.at, rank.moved = rank.at + 1, self.now

    def _next_round(self, progress: _Progress) -> None:
        """Post the halves of the next round; pass over rounds in which there is nothing to wait for."""
        while progress.missing == 0:
            progress.round += 1
            if progress.round == len(progress.rounds):
                progress.finished = self.now
                return
            for flight in progress.rounds[progress.round]:
                if flight is not None:
                    progress.missing += 1
                    self._post(flight)
                elif progress.event.completed is None:
                    progress.missing += 1  # its other side never came, and the rank never got past it

    def _post(self, flight: Flight) -> None:
        flight.posted += 1
        if flight.posted == 2:
            flight.ready = self.now
            flight.price = self.cost(flight.src, flight.dst, flight.bytes)
            self.fresh.append(flight)

    def _start(self, freed: Iterable[tuple]) -> None:
        """Start every message that now can, in order of priority."""
        candidates = dict.fromkeys(self.fresh)
        for port in freed:
            candidates.update(self.queued[port])
        self.fresh = []
        for flight in sorted(candidates, key=lambda f: f.priority):
            ports = flight.price.ports
            if flight.price.flows:
                self.shared.add(flight, self.now)
                continue
            if any(port in self.busy for port in ports):
                for port in ports:
                    self.queued[port][flight] = None
                continue
            for port in ports:
                self.queued[port].pop(flight, None)
                self.busy.add(port)
            flight.begin = self.now
            self._arrive(flight, self.now + flight.price.latency + flight.price.transmission)

    def _arrive(self, flight: Flight, end: int) -> None:
        """Let a message end then."""
        flight.end = end
        self.started += 1
        heappush(self.in_flight, (end, self.started, flight))

    def _flow(self) -> bool:
        """Go to the next moment at which something happens to messages that share ports, or to an arrival before it.

        Returns:
            Whether it is an arrival.
        """
        until, reached = self.shared.next(self.now)
        if until is None or (self.in_flight and self.in_flight[0][0] < until):
            until, reached = self.in_flight[0][0], []
        self.shared.advance(until - self.now)
        self.now = until
        for flight in reached:
            if flight.buffered or not self.shared.left[flight]:
                self.shared.remove(flight, self.now)
                self._arrive(flight, self.now + flight.price.latency)
            else:
                flight.buffered = True
                self._done(flight.send)
        return not reached

    def _done(self, progress: _Progress) -> None:
        """A half of a call is done: its rank may continue."""
        progress.missing -= 1
        self._next_round(progress)
        self._advance(self.ranks[progress.event.rank])

    def _land(self) -> list[tuple]:
        """Go to the next moment at which messages end; resume ranks that waited for them. Returns the freed ports."""
        self.now = self.in_flight[0][0]
        landed = []
        while self.in_flight and self.in_flight[0][0] == self.now:
            landed.append(heappop(self.in_flight)[2])
        for flight in landed:
            self.busy.difference_update(flight.price.ports)
            for progress in (flight.recv,) if flight.buffered else (flight.send, flight.recv):
                progress.missing -= 1
                self._next_round(progress)
        for rank in sorted({r for flight in landed for r in (flight.src, flight.dst)}):
            self._advance(self.ranks[rank])
        return [port for flight in landed for port in flight.price.ports]

    def _let_go(self) -> bool:
        """Nothing moves, but waits that hold ranks up did return in the real run: let sends go, or if none is, all."""
        held = [rank for rank in self.ranks if rank.blocked_since is not None]
        for rank in [rank for rank in held if rank.awaited.event.op is Op.SEND] or held:
            rank.blocked.append((rank.blocked_since, self.now, rank.awaited.call))
            rank.blocked_since = None
            rank.at, rank.moved = rank.at + 1, self.now
            self._advance(rank)
        return bool(held)


def _program(own: Sequence[_Progress]) -> list[tuple[int, bool, _Progress]]:
    """Posts and waits of one rank, by tick."""
    entries = [(progress.event.posted, False, progress) for progress in own]
    entries += [(progress.event.completed, True, progress) for progress in own if progress.event.completed is not None]
    return sorted(entries, key=lambda entry: entry[0])
