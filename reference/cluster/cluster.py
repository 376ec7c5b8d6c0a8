"""`Cluster`: N ranks on this machine, kept warm."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..trace import Event, Op, Trace, frames
from . import forkserver, verdict, wire
from .errors import ClusterError, Interrupted, OutputFlood, RankError, ResultError
from .output import FLOOD, WINDOW
from .ranks import Exit, Message, Ranks
from .verdict import Reports
from .watch.supervisor import Supervisor
from .wire import Kind

MAX_RANKS = 32
_GRACE = 0.03  # seconds from the first report of a fault in which its cause may still come in
_WATCHED_GRACE = 0.15  # the same, where the supervisor says when every other rank waits
_START = 60.0  # seconds in which ranks must have come up
_SWITCH = 0.25  # seconds between two looks at nothing


class Cluster:
    """N ranks with `torch.distributed` initialised, ready to run functions.

        with Cluster(8) as cluster:
            results = cluster.run(fn, *args)           # [fn's result on rank 0, on rank 1, ...]
            results, trace = cluster.trace(fn, *args)  # and what the ranks said

    `fn` may be a closure, a lambda, a class or a function of a notebook. It runs on every rank at once, with the same
    arguments, in processes that have kept nothing from the call before but imported modules. A call that fails raises
    one `RankError`; the ranks are started again and the next call works. No process outlives its owner.

    Args:
        world_size: number of ranks, 1 to 32.
        watch: supervise every call: name deadlocks, mismatches and misused requests at once, at their lines.
        timeout: seconds that one call may take, None for no limit; by default 10 when watched, else 300.
        device: "cpu" for gloo; "cuda" for NCCL with one GPU for each rank.
        untrusted: the functions are not the owner's own: refuse what reaches outside, and unpickle only plain data.

    Raises:
        ClusterError: the cluster can't be had, with the reason.
    """

    def __init__(
        self,
        world_size: int,
        *,
        watch: bool = False,
        timeout: float | None | type(...) = ...,
        device: str = "cpu",
        untrusted: bool = False,
    ) -> None:
        check_platform()
        if not isinstance(world_size, int) or not 1 <= world_size <= MAX_RANKS:
            raise ClusterError(f"a cluster has 1 to {MAX_RANKS} ranks, not {world_size!r}")
        check_device(device, world_size)
        self.world_size = world_size
        self.timeout = (10.0 if watch else 300.0) if timeout is ... else timeout
        self._plan = {"device": device, "watch": watch, "untrusted": untrusted}
        self._closed = False
        self._lock = threading.Lock()
        self._ranks = self._start()

    def _start(self) -> Ranks:
        self._path = list(sys.path)
        self._ready = 0
        self._dirty = False
        return Ranks(forkserver.shared(), self.world_size, self._plan | {"path": self._path})

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `fn(*args, **kwargs)` on every rank and return the results, by rank.

        Raises:
            RankError: the call failed; one of its subclasses says how.
        """
        results, _ = self._call(fn, args, kwargs, record=False)
        return results

    def trace(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[list[Any], Trace]:
        """As `run`, and what the ranks said to each other. Only with `device="cpu"`."""
        if self._plan["device"] != "cpu":
            raise ClusterError('only ranks on device="cpu" can be traced; on GPUs use torch.profiler')
        return self._call(fn, args, kwargs, record=True)

    def restart(self) -> None:
        """Start the ranks afresh, so that they import changed modules again."""
        self._ranks.kill()
        self._ranks = self._start()

    def close(self) -> None:
        """End the ranks and wait until they are gone. A closed cluster runs nothing."""
        if not self._closed:
            self._closed = True
            self._ranks.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, once they are up."""
        return list(self._ranks.pids)

    def _call(self, fn: Callable[..., Any], args: tuple, kwargs: dict, *, record: bool) -> tuple[list[Any], Trace]:
        if self._closed:
            raise ClusterError("the cluster is closed")
        if not self._lock.acquire(blocking=False):
            raise ClusterError("the cluster is running another call: use one cluster for each thread")
        try:
            return self._attempt(fn, args, kwargs, record)
        finally:
            self._lock.release()

    def _attempt(self, fn: Callable[..., Any], args: tuple, kwargs: dict, record: bool) -> tuple[list[Any], Trace]:
        payload, buffers = pack(fn, args, kwargs)
        call = None
        try:
            self._settle()
            call = Call(self, record)
            call.send(payload, buffers)
            return call.collect()
        except KeyboardInterrupt:
            stacks = self._ranks.stacks(list(range(self.world_size)))
            self.restart()
            raise interrupted(stacks) from None
        except RankError as error:
            if not error.file:
                error.file, error.line = definition(fn)
            self.restart()
            raise

    def _settle(self) -> None:
        """Wait until the ranks are up; start them again where one has died since, or something was left behind."""
        for _ in self._ranks.poll(0):
            self._dirty = self._dirty or not isinstance(_, Message)
            self._ready += isinstance(_, Message) and _.kind is Kind.READY
        if self._dirty:
            self.restart()
        deadline = time.monotonic() + _START
        while self._ready < self.world_size:
            for report in self._ranks.poll(_SWITCH):
                if isinstance(report, Exit) or report.kind is Kind.FAULT:
                    self._ranks.output.flush()
                    raise ClusterError(f"rank {report.rank} did not start: {forkserver.shared().last_words()}")
                self._ready += report.kind is Kind.READY
            if not forkserver.shared().alive or time.monotonic() > deadline:
                raise ClusterError(f"the ranks did not start: {forkserver.shared().last_words()}")


class Call:
    """One function on its way through all ranks."""

    def __init__(self, cluster: Cluster, record: bool) -> None:
        watch = cluster._plan["watch"]
        self.cluster, self.ranks, self.record = cluster, cluster._ranks, record or watch
        self.supervisor = Supervisor(cluster.world_size) if watch else None
        self.reports = Reports(cluster.world_size)
        self.rows: dict[int, list[list[Any]]] = {}
        self.begin = time.monotonic()
        self.deadline = self.begin + (cluster.timeout or float("inf"))

    def send(self, payload: bytes, buffers: tuple[Any, ...]) -> None:
        """Hand the function to every rank."""
        head: dict[str, Any] = {"record": self.record}
        if sys.path != self.cluster._path:
            head["path"] = self.cluster._path = list(sys.path)
        body = json.dumps(head).encode() + b"\n" + payload
        self.ranks.output.begin()
        for rank in range(self.cluster.world_size):
            self.ranks.send(rank, Kind.RUN, body, buffers)

    def collect(self) -> tuple[list[Any], Trace]:
        """Wait for every rank. Raises the one error that explains a failure."""
        reports = self.reports
        patience = float("inf")
        while reports.silent and time.monotonic() < patience:
            now = time.monotonic()
            if now > self.deadline:
                stacks = self.ranks.stacks(reports.silent)
                watched = self.supervisor is not None
                raise verdict.out_of_time(self.cluster.timeout, stacks, reports.silent[0], watched=watched)
            for report in self.ranks.poll(min(self.deadline, patience, now + _SWITCH, self.suspicion()) - now):
                self.take(report)
            self.check_output()
            if not reports.failed:
                self.judge()
            if reports.failed and patience == float("inf"):
                patience = time.monotonic() + (_WATCHED_GRACE if self.supervisor else _GRACE)
            if reports.failed and self.settled():
                break
        for rank in range(self.cluster.world_size):
            self.ranks.drain_output(rank)
        self.ranks.output.flush()
        if reports.failed:
            self.judge(final=True)
            raise self.explain()
        return [reports.results[rank] for rank in range(self.cluster.world_size)], self.as_trace()

    def take(self, report: Message | Exit) -> None:
        """Note what came in from a rank."""
        rank = report.rank
        if isinstance(report, Exit):
            self.reports.exits[rank] = report.status
        elif report.kind is Kind.EVENT and self.supervisor:
            self.supervisor.take(rank, json.loads(report.payload))
        elif report.kind is Kind.RESULT:
            self.reports.results[rank] = self.unpack(report)
            if self.supervisor:
                self.supervisor.finish(rank)
        elif report.kind is Kind.FAULT:
            self.reports.faults[rank] = json.loads(report.payload)
        elif report.kind is Kind.EVENTS:
            self.rows[rank] = json.loads(report.payload)
        elif report.kind is Kind.READY:
            self.cluster._dirty = True

    def check_output(self) -> None:
        """Raises OutputFlood where a rank prints more than anybody will read."""
        for rank in range(self.cluster.world_size):
            if self.ranks.output.flooded(rank):
                what = f"printed more than {FLOOD >> 10} KiB within {WINDOW:g} s: stopped"
                raise OutputFlood("output flood", what, rank=rank)

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

    def unpack(self, report: Message) -> Any:
        """The object that a rank returned."""
        load = wire.loads_guarded if self.cluster._plan["untrusted"] else wire.loads
        try:
            return load(report.payload, report.buffers)
        except Exception as error:
            raise ResultError(
                "unpicklable result", f"fn's result does not arrive: {error}", rank=report.rank
            ) from error

    def explain(self) -> RankError:
        """The error of the rank that failed first, not of those that only noticed."""
        reports = self.reports
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
            tuple(event(rank, row, self.begin) for row in self.rows.get(rank, ()))
            for rank in range(self.cluster.world_size)
        )
        return Trace(self.cluster.world_size, events)


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
    """File and line where a function begins, for a fault that has no line of its own."""
    code = getattr(fn, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def interrupted(stacks: dict[int, list[frames.Frame]]) -> Interrupted:
    """The error of a call that its owner stopped."""
    rank = min(stacks, default=0)
    where = frames.own(stacks.get(rank, []))
    details = ["interrupted; the ranks have been started again"]
    return Interrupted("interrupted", *details, rank=rank, file=where.file, line=where.line)


def check_platform() -> None:
    """Raises ClusterError on Windows."""
    if os.name == "nt":
        raise ClusterError("there is no fork on Windows: use WSL (https://learn.microsoft.com/windows/wsl)")


def check_device(device: str, world_size: int) -> None:
    """Raises ClusterError where there are not enough GPUs, or no such device."""
    if device == "cuda":
        import torch

        if (count := torch.cuda.device_count()) < world_size:
            raise ClusterError(
                f'device="cuda" gives one GPU to each rank: {world_size} ranks need {world_size}, here are {count}'
            )
    elif device != "cpu":
        raise ClusterError(f'device is "cpu" or "cuda", not {device!r}')
