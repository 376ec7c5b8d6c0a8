"""One function on its way through all ranks: sent, awaited, and explained where it fails."""

import inspect
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..trace import Event, Trace, frames
from . import pickling, verdict, wire
from .arguments import Packed
from .errors import Interrupted, OutputFlood, RankDied, RankError, ResultError
from .output import FLOOD, WINDOW
from .patience import Patience, ready
from .ranks import Exit, RankMessage, Ranks
from .verdict import Messages, Outcome, Reports
from .watch.supervisor import Supervisor
from .wire import MessageKind

_GRACE = 0.03  # seconds from the first report of a fault in which its cause may still come in
_CAUSE = 1.0  # the same, where ranks have only noticed that another one is gone
_WATCHED_GRACE = 0.15  # the same, where the supervisor says when every other rank waits


@dataclass(frozen=True)
class Gone:
    """In the place of a result: the rank's process has ended.

    Attributes:
        status: its exit code, or minus the signal that ended it.
        hung: it had not ended when the call was over, and was killed.
    """

    status: int
    hung: bool = False

    def __str__(self) -> str:
        return "hung, and was killed at the end" if self.hung else f"has died (status {self.status})"


@dataclass(frozen=True)
class Last:
    """When a call is over that ranks may not survive: some time after a result that says so.

    Attributes:
        says_so: of a result.
        seconds: that the other ranks have for theirs. Those that hang are then killed.
    """

    says_so: Callable[[Any], bool]
    seconds: float = 10.0


class RunningCall:
    """One function on its way through all ranks.

    Args:
        mortal: ranks may die, and the others' results count.
        last: when those are killed that hang; by default never.
    """

    def __init__(
        self,
        ranks: Ranks,
        timeout: float | None,
        plan: dict[str, Any],
        record: bool,
        mortal: bool = False,
        last: Last | None = None,
    ) -> None:
        self.ranks, self.world_size, self.timeout = ranks, ranks.world_size, timeout
        self.supervisor = Supervisor(self.world_size, self.ready) if plan["watch"] else None
        self.record = record or plan["watch"]
        self.load = pickling.loads_guarded if plan["untrusted"] else pickling.loads_result
        self.ticks = [-1] * self.world_size if plan["untrusted"] else None  # the last that each rank has told
        self.reports = Reports(self.world_size, mortal=mortal)
        self.last, self.over = last, float("inf")  # and when ranks are killed that have not ended
        self.hung: list[int] = []  # those that were
        self.heard = 0  # the rank that has reported last
        self.begin = time.monotonic()
        self.patience = Patience(timeout, ranks.pids)

    def send(self, packed: Sequence[Packed], news: dict[str, Any]) -> None:
        """Hand the function to every rank, with what has changed around the caller."""
        header = news | ({"record": True} if self.record else {}) | ({"mortal": True} if self.reports.mortal else {})
        self.ranks.output.begin()
        self.ranks.calls += 1
        for rank, (payload, buffers) in enumerate(packed):
            try:
                self.ranks.send(rank, MessageKind.RUN, wire.with_header(header, payload), buffers, self.patience.end)
            except TimeoutError:
                raise self.out_of_time() from None

    def collect(self) -> list[Any]:
        """Wait for every rank: what each returned.

        Raises the one error that explains a failure, with what had been said until then.
        """
        try:
            self.wait()
            self.ranks.drain()
            if self.reports.failed:
                self.judge(final=True)
                with self.reading():
                    raise self.explain()
        except RankError as error:
            error.trace = self.trace() if self.supervisor else None
            raise
        return [outcome.result for outcome in self.outcomes]

    @property
    def outcomes(self) -> list[Outcome]:
        """What each rank has sent back, once the call is over."""
        return [self.reports.outcomes.get(rank) or self.gone(rank) for rank in range(self.world_size)]

    def trace(self) -> Trace:
        """What the ranks said to each other."""
        with self.reading():
            if self.supervisor:
                return self.supervisor.trace(self.begin)
            return Trace(self.world_size, tuple(o.events for o in self.outcomes), frozenset(range(self.world_size)))

    def gone(self, rank: int) -> Outcome:
        """What there is of a rank whose process has ended."""
        return Outcome(Gone(self.reports.exits[rank], rank in self.hung), (), {}, 0, 0)

    def wait(self) -> None:
        """Until every rank has finished, or a failure has had the time to show its cause."""
        patience = float("inf")
        while not self.settled() and (now := time.monotonic()) < patience:
            if self.patience.over(now):
                raise self.out_of_time()
            for report in self.ranks.poll(min(self.patience.look, patience, self.suspicion(), self.over) - now):
                self.take(report)
            if time.monotonic() >= self.over:
                self.kill_silent()
            self.check_output()
            if self.reports.failed:
                patience = min(patience, time.monotonic() + self.grace())
            else:
                self.judge()

    def take(self, report: RankMessage | Exit) -> None:
        """Note what came in from a rank. Raises ResultError for a report that no rank of ours has sent."""
        rank = report.rank
        if isinstance(report, Exit):
            self.reports.exits[rank] = report.status
            return
        if report.call < self.ranks.calls:
            return  # left over from a call before
        self.heard = rank
        if report.call > self.ranks.calls or (report.kind is MessageKind.RESULT and rank in self.reports.outcomes):
            raise ResultError("forged report", "a report too many: the code on this rank has made it up", rank=rank)
        with self.reading():
            if report.kind is MessageKind.EVENT and self.supervisor:
                for each in json.loads(report.payload):
                    self.supervisor.take(rank, each)
                    self.check_clock(rank, each)
            elif report.kind is MessageKind.RESULT:
                self.reports.outcomes[rank] = outcome = self.unpack(rank, report.payload, report.buffers)
                if self.last and self.last.says_so(outcome.result):
                    self.over = min(self.over, time.monotonic() + self.last.seconds)
                if self.supervisor:
                    self.supervisor.finish(rank)
            elif report.kind is MessageKind.FAULT:
                self.reports.faults[rank] = verdict.from_fault(rank, json.loads(report.payload))

    def check_clock(self, rank: int, report: Mapping[str, Any]) -> None:
        """Raises ResultError where untrusted code has set back the clock that says which of its calls depend on which.

        Such code has one thread, so its reports come in the order of their ticks.
        """
        what = report["what"]
        if self.ticks is None or what not in ("post", "completed"):
            return
        post = self.supervisor.posts[rank][report["number"]]
        if post.makes_group:  # that has no tick, and is not in the trace
            return
        tick = post.event.posted if what == "post" else post.completed
        if tick <= self.ticks[rank]:
            said = "a clock of calls that goes back: the code on this rank has set it"
            raise ResultError("forged report", said, rank=rank)
        self.ticks[rank] = tick

    def kill_silent(self) -> None:
        """Kill the ranks that have not ended: their exits come in."""
        self.over, self.hung = float("inf"), self.reports.silent
        for rank in self.hung:
            with suppress(ProcessLookupError):
                os.kill(self.ranks.pids[rank], signal.SIGKILL)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make sense of what has come in. Where that fails, ResultError blames the rank that was heard last."""
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            what = f"a report that makes no sense: {error!r}"
            raise ResultError("forged report", what, rank=self.heard) from error

    def check_output(self) -> None:
        """Raises OutputFlood where a rank prints more than is kept."""
        if (rank := self.ranks.output.flooding) is not None:
            what = f"printed more than {FLOOD >> 10} KiB within {WINDOW:g} s: stopped"
            where = frames.own(self.ranks.stacks([rank]).get(rank, ()))
            raise OutputFlood("output flood", what, rank=rank, file=where.file, line=where.line)

    def out_of_time(self) -> RankError:
        """The error of a call that takes longer than it may."""
        silent = self.reports.silent
        if self.patience.busy:
            return verdict.too_busy(time.monotonic() - self.begin, silent[0])
        with self.reading():
            if self.supervisor and (error := self.supervisor.out_of_time()):
                return error
        return verdict.out_of_time(
            self.timeout or 0.0, self.ranks.stacks(silent), silent[0], watched=self.supervisor is not None
        )

    def grace(self) -> float:
        """Seconds in which more may come in that explains a failure."""
        if not self.reports.exits and all(map(verdict.consequence, self.reports.faults.values())):
            return _CAUSE
        return _WATCHED_GRACE if self.supervisor else _GRACE

    def settled(self) -> bool:
        """True where nothing more can come: every rank has ended or, where one has failed, waits."""
        silent = self.reports.silent
        if self.reports.failed and self.supervisor:
            return all(map(self.supervisor.blocked, silent))
        return not silent

    def ready(self, rank: int) -> bool:
        """Whether a rank computes, or stands in the queue for a processor."""
        return ready(self.ranks.pids[rank])

    def suspicion(self) -> float:
        """When the supervisor wants to look again."""
        return self.supervisor.deadline if self.supervisor else float("inf")

    def judge(self, *, final: bool = False) -> None:
        """Raises the supervisor's verdict, if it has one."""
        with self.reading():
            if self.supervisor and (error := self.supervisor.judge(final=final)):
                raise error

    def unpack(self, rank: int, payload: bytes, buffers: list[wire.Buffer]) -> Outcome:
        """What came back from a rank. Raises ResultError where that can't be read."""
        header, body = wire.split_header(payload)
        events = tuple(Event.from_row(rank, row).since(self.begin) for row in header.get("rows", ()))
        messages = {(src, dst, tag): int(count) for src, dst, tag, count in header.get("messages", ())}
        rounds, threads = int(header.get("rounds", 0)), int(header.get("threads", 0))
        try:
            return Outcome(self.load(body, buffers), events, messages, rounds, threads)
        except Exception as error:
            raise ResultError("unpicklable result", f"fn's result does not arrive: {error}", rank=rank) from error

    @property
    def dirty(self) -> bool:
        """True where the call left something: a thread, a message that no rank took, dead ranks. Start them again."""
        if self.reports.mortal:
            return True
        left = self.reports.outcomes.values()
        unheard = lost(outcome.messages for outcome in left)
        return unheard or len({outcome.rounds for outcome in left}) > 1 or any(outcome.threads for outcome in left)

    def explain(self) -> RankError:
        """The error of the rank that failed first, not of those that only noticed."""
        reports = self.reports
        if self.ranks.failure:
            return RankDied("fork server", self.ranks.failure, rank=min(reports.exits))
        causes = [rank for rank, fault in reports.faults.items() if not verdict.consequence(fault)]
        if reports.exits and not causes:
            error = self.of_exit(min(reports.exits))
        else:
            error = reports.faults[min(causes or reports.faults)]
        left = self.supervisor.left_waiting() if self.supervisor else ""
        left = left or verdict.left(self.ranks.stacks(reports.silent))
        error.details += (left,) if left else ()
        return error

    def of_exit(self, rank: int) -> RankError:
        """The error of a rank whose process ended, with what it was last seen at."""
        stack = frames.of_dump(self.ranks.dumped(rank))
        error = verdict.from_exit(rank, self.reports.exits[rank], stack, verdict.communication(stack))
        if self.supervisor and (last := self.supervisor.last_call(rank)):
            error.details += (f"its last call was {last.text} at {last.place}",)
            if not error.file:
                error.file, error.line = last.place.file, last.place.line
        return error


def lost(said: Iterable[Messages]) -> bool:
    """True where a message was not received, or a receive not answered, by what each rank has said."""
    named: Counter[tuple[int, int, int]] = Counter()
    in_all: Counter[tuple[int, int]] = Counter()
    for messages in said:
        for (src, dst, tag), count in messages.items():
            in_all[dst, tag] += count
            if src is not None:
                named[src, dst, tag] += count
    # what its named receives leave of a source's messages, receives from any rank have taken
    return any(in_all.values()) or min(named.values(), default=0) < 0


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
