"""One function on its way through all ranks: sent, awaited, and explained where it fails."""

import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from ..trace import Event, Op, Trace, frames
from . import verdict, wire
from .errors import Interrupted, OutputFlood, RankDied, RankError, ResultError
from .output import FLOOD, WINDOW
from .ranks import Exit, Message, Ranks
from .verdict import Reports
from .watch.supervisor import Supervisor
from .wire import Kind

_GRACE = 0.03  # seconds from the first report of a fault in which its cause may still come in
_CAUSE = 1.0  # the same, where ranks have only noticed that another one is gone
_WATCHED_GRACE = 0.15  # the same, where the supervisor says when every other rank waits


class Call:
    """One function on its way through all ranks.

    Attributes:
        dirty: the function left something running; the ranks must be started again before the next call.
    """

    def __init__(self, ranks: Ranks, timeout: float | None, plan: dict[str, Any], record: bool) -> None:
        self.ranks, self.world_size, self.timeout = ranks, ranks.world_size, timeout
        self.supervisor = Supervisor(self.world_size) if plan["watch"] else None
        self.record = record or plan["watch"]
        self.load = wire.loads_guarded if plan["untrusted"] else wire.loads
        self.reports = Reports(self.world_size)
        self.rows: dict[int, list[list[Any]]] = {}
        self.dirty = False
        self.begin = time.monotonic()
        self.deadline = self.begin + (timeout or float("inf"))

    def send(self, payload: bytes, buffers: tuple[Any, ...], news: dict[str, Any]) -> None:
        """Hand the function to every rank, with what has changed around the caller."""
        body = json.dumps({"record": self.record} | news).encode() + b"\n" + payload
        self.ranks.output.begin()
        for rank in range(self.world_size):
            try:
                self.ranks.send(rank, Kind.RUN, body, buffers, self.deadline)
            except TimeoutError:
                raise self.out_of_time() from None

    def collect(self) -> tuple[list[Any], Trace]:
        """Wait for every rank. Raises the one error that explains a failure, with what had been said until then."""
        try:
            self.wait()
            self.ranks.drain()
            if self.reports.failed:
                self.judge(final=True)
                raise self.explain()
        except RankError as error:
            error.trace = self.supervisor.trace(self.begin) if self.supervisor else None
            raise
        return [self.reports.results[rank] for rank in range(self.world_size)], self.as_trace()

    def wait(self) -> None:
        """Until every rank has finished, or a failure has had the time to show its cause."""
        patience = float("inf")
        while self.reports.silent and (now := time.monotonic()) < patience:
            if now > self.deadline:
                raise self.out_of_time()
            for report in self.ranks.poll(min(self.deadline, patience, self.suspicion()) - now):
                self.take(report)
            self.check_output()
            if not self.reports.failed:
                self.judge()
            elif self.settled():
                return
            else:
                patience = min(patience, time.monotonic() + self.grace())

    def take(self, report: Message | Exit) -> None:
        """Note what came in from a rank."""
        rank = report.rank
        if isinstance(report, Exit):
            self.reports.exits[rank] = report.status
        elif report.kind is Kind.EVENT and self.supervisor:
            self.hear(rank, report.payload)
        elif report.kind is Kind.RESULT:
            self.reports.results[rank] = self.unpack(report)
            if self.supervisor:
                self.supervisor.finish(rank)
        elif report.kind is Kind.FAULT:
            self.reports.faults[rank] = json.loads(report.payload)
        elif report.kind is Kind.EVENTS:
            self.rows[rank] = json.loads(report.payload)
        elif report.kind is Kind.DIRTY:
            self.dirty = True

    def check_output(self) -> None:
        """Raises OutputFlood where a rank prints more than anybody will read."""
        if (rank := self.ranks.output.flooding) is not None:
            what = f"printed more than {FLOOD >> 10} KiB within {WINDOW:g} s: stopped"
            where = frames.own(self.ranks.stacks([rank]).get(rank, ()))
            raise OutputFlood("output flood", what, rank=rank, file=where.file, line=where.line)

    def out_of_time(self) -> RankError:
        """The error of a call that takes longer than it may."""
        silent = self.reports.silent
        return verdict.out_of_time(
            self.timeout or 0.0, self.ranks.stacks(silent), silent[0], watched=self.supervisor is not None
        )

    def grace(self) -> float:
        """Seconds in which more may come in that explains a failure."""
        if not self.reports.exits and all(map(verdict.consequence, self.reports.faults.values())):
            return _CAUSE
        return _WATCHED_GRACE if self.supervisor else _GRACE

    def settled(self) -> bool:
        """True where a watched run has nothing more to tell: every other rank waits."""
        return self.supervisor is not None and all(self.supervisor.blocked(rank) for rank in self.reports.silent)

    def suspicion(self) -> float:
        """When the supervisor wants to look again."""
        return self.supervisor.deadline if self.supervisor else float("inf")

    def judge(self, *, final: bool = False) -> None:
        """Raises the supervisor's verdict, if it has one."""
        if self.supervisor and (error := self.supervisor.judge(final=final)):
            raise error

    def hear(self, rank: int, payload: bytes) -> None:
        """Hand a report to the supervisor. Raises ResultError for one that no watcher of ours has sent."""
        try:
            self.supervisor.take(rank, json.loads(payload))
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError("forged report", f"a report that makes no sense: {error!r}", rank=rank) from error

    def unpack(self, report: Message) -> Any:
        """The object that a rank returned."""
        try:
            return self.load(report.payload, report.buffers)
        except Exception as error:
            raise ResultError(
                "unpicklable result", f"fn's result does not arrive: {error}", rank=report.rank
            ) from error

    def explain(self) -> RankError:
        """The error of the rank that failed first, not of those that only noticed."""
        reports = self.reports
        if self.ranks.failure:
            return RankDied("fork server", self.ranks.failure, rank=min(reports.exits))
        causes = {rank: fault for rank, fault in reports.faults.items() if not verdict.consequence(fault)}
        left = self.supervisor.left_waiting() if self.supervisor else ""
        left = left or verdict.waiting(self.ranks.stacks(reports.silent))
        more = [left] if left else []
        if causes:
            rank = min(causes)
            return verdict.from_fault(rank, causes[rank], *more)
        if reports.exits:
            rank = min(reports.exits)
            stack = frames.of_dump(self.ranks.dumped(rank))
            error = verdict.from_exit(rank, reports.exits[rank], stack, verdict.communication(stack), *more)
            if self.supervisor and (last := self.supervisor.last_call(rank)):
                error.details = (error.details[0], f"its last call was {last.text} at {last.place}", *error.details[1:])
                if not error.file:
                    error.file, error.line = last.place.file, last.place.line
            return error
        rank = min(reports.faults)
        return verdict.from_fault(rank, reports.faults[rank], *more)

    def as_trace(self) -> Trace:
        """What the ranks said, as far as they have told."""
        events = tuple(
            tuple(event(rank, row, self.begin) for row in self.rows.get(rank, ())) for rank in range(self.world_size)
        )
        return Trace(self.world_size, events)


def event(rank: int, row: list[Any], zero: float) -> Event:
    """One row of a rank's report as an `Event`, with times from `zero` on."""
    op, group, peer, tag, shape, dtype, size, splits, reduce, file, line, posted, completed, begin, end = row
    return Event(
        rank, Op(op), tuple(group), peer, tag, tuple(shape), dtype, size, tuple(splits), reduce, file, line,
        posted, completed, begin - zero, None if end is None else end - zero,
    )  # fmt: skip


def pack(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[bytes, tuple[Any, ...]]:
    """A function and its arguments as bytes. Raises TypeError with the reason where they can't travel."""
    try:
        return wire.dumps((fn, args, kwargs))
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"{name} or an argument of it can't travel to the ranks: {error}") from error


def definition(fn: Callable[..., Any]) -> tuple[str, int]:
    """File and line where a function begins, for a fault that has no line of its own; else where it was run."""
    fn = inspect.unwrap(getattr(fn, "func", fn))  # partial, decorated
    for part in (fn, *(getattr(fn, name, None) for name in ("__init__", "__call__"))):
        if code := getattr(part, "__code__", None):
            return code.co_filename, code.co_firstlineno
    caller = frames.own(frames.of_stack(sys._getframe(1)))
    return caller.file, caller.line


def interrupted(stacks: dict[int, list[frames.Frame]]) -> Interrupted:
    """The error of a call that its owner stopped."""
    rank = min(stacks, default=0)
    where = frames.own(stacks.get(rank, []))
    details = ["interrupted; the ranks have been started again"]
    return Interrupted("interrupted", *details, rank=rank, file=where.file, line=where.line)
