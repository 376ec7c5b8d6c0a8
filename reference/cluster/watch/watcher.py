"""A recorder that watches: it checks each call, reports it to the supervisor, and guards the buffers in flight."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from time import sleep  # the one that is never replaced
from types import FrameType
from typing import Any

import torch
from torch.distributed import Work
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...trace import Op, frames
from ...trace.calls import PUBLIC, Call
from ...trace.requests import OURS
from ...trace.tap import Recorder
from .. import wire
from ..errors import GroupError, RankError, RequestError, TensorError, ThreadError
from ..faults import describe
from . import checks
from .buffers import Copies, TouchGuard, poison, tensors_of
from .flights import Flights, OpenCall, Touch
from .gradients import Gradients
from .idle_threads import idle
from .order import Order
from .patches import replaced, watched_groups
from .posted_calls import report_of, text_of
from .replicas import Replica
from .swallowed import noticed, unnoticed
from .synchronize import ordered_threads, replace_for_good
from .torch_futures import Futures
from .uses import result_used

_REQUESTS = ("isend", "irecv", "batch_isend_irecv")
_BLOCKING = ("send", "recv")
_FOLLOWER = f"{OURS}follows waits"
_FOLLOW = 0.01  # seconds between two looks at the other threads
_OUTLAST = 0.15  # seconds for threads that outlive the function
_POLLED = 0.1  # seconds of nothing but polls, after which a rank counts as one that waits
_CAUGHT = 5  # exceptions of one run that are worth a report


class Watcher(Recorder):
    """What a rank of a watched cluster records with."""

    def __init__(self, rank: int, channel: wire.MessageChannel) -> None:
        super().__init__(rank)
        self._channel = channel
        self._process = os.getpid()
        self._reporting = threading.Lock()
        replace_for_good()
        self._forget()

    def _forget(self) -> None:
        self.order = Order(memory := Order())
        self.flights, self.copies, self.gradients = Flights(memory), Copies(), Gradients()
        self.threads = checks.ThreadOrder(self.order)
        self.replicas: list[Replica] = []
        self._requests: dict[int, Work] = {}
        self.futures = Futures()
        self._given_as_futures: set[int] = set()  # calls
        self._awaited: set[int] = set()
        self._announced: set[int] = set()  # calls that were reported as awaited when they were posted
        self._polls: dict[int, tuple[float, int, set[int]]] = {}  # by thread: since when, after how many calls, told
        self._pending: list[dict[str, Any]] = []  # for the next report: nothing hangs on it
        self._caught = 0
        self._returned = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch what runs inside."""
        self._forget()
        before = set(threading.enumerate())
        with super().recording(), ExitStack() as stack:
            stack.enter_context(watched_groups(self))
            stack.enter_context(ordered_threads(self.order, self._guard))
            stack.enter_context(self.futures.watched(self))
            stack.enter_context(replaced(torch, "save", self._saving(torch.save)))
            stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
            stack.callback(self.report)
            stack.enter_context(self._guard())
            yield
            self._returned = True
            self._check_end()
            self._outlast(before)

    @property
    def untold(self) -> list[Call]:
        """None: each was reported before it was made."""
        return []

    def _guard(self) -> TouchGuard:
        """To be entered in each thread: torch's modes are a thread's own."""
        return TouchGuard(self.flights, self._touched, self.gradients, self.copies)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for replica in self.replicas:
            replica.stepped(optimizer)

    def noticing(self) -> AbstractContextManager[None]:
        """Record the exceptions that pass through the code inside, also those that it catches."""
        return noticed(self._noticed)

    @unnoticed
    def posted(self, call: Call) -> None:
        """Check a call, and report it before it is made."""
        super().posted(call)
        try:
            self._check(call)
        except RankError as error:
            self.calls.remove(call)
            self._accuse(error)
            raise
        self._polls_no_more()
        goes_on, others = _goes_on(call, sys._getframe(1)) if call.direct else None, 0
        if goes_on is False:
            self._announced.add(call.number)
            others = self._report_wait(call, (call.file, call.line), report_of(call, self.rank))
        else:
            self.report(report_of(call, self.rank))
        if call.direct:
            self.gradients.begin(call, next(frames.own_stack(sys._getframe(1)), None))
            if call.function in _REQUESTS:
                poison(call)
            self.flights.begin(call, lend=bool(goes_on))
            if touch := self.flights.disturbed(call):
                raise self._touched_before(call, touch)
        self._follow(call, others)  # last: to start a thread puts this one behind others

    def _check(self, call: Call) -> None:
        """Raises the first thing that is wrong with a call."""
        if os.getpid() != self._process:
            what = "a process that the rank has started is no rank: no rank answers it, and it would wait forever"
            raise checks.at(call, self.rank, GroupError, "forked", what, "communicate in fn itself")
        self._check_copies()
        if self._returned:
            what = f"thread {threading.current_thread().name!r} still communicates after fn has returned"
            raise checks.at(call, self.rank, ThreadError, "threads", what, "join it first")
        self._check_buffers(call)
        checks.check(call, self.rank)
        self.threads.check(call, self.rank)

    def _accuse(self, error: RankError) -> None:
        """Tell at once: the caller's code may catch what we raise."""
        self.report({"what": "accused", "fault": describe(error, self.rank)})

    def _check_buffers(self, call: Call) -> None:
        """Raises RequestError where a call takes a buffer that another one has not given back."""
        for tensor in (*call.inputs, *call.outputs) if self.flights.any else ():
            written = any(tensor is output for output in call.outputs)
            if flight := self.flights.touched(tensor, writes=written):
                raise self._touched(flight, "modified" if written else "read", call)

    def make(self, call: Call, run: partial[Work]) -> Work:
        """Make a call. A collective has no backward, so it leaves no history in its outputs: gloo's copies would."""
        run = partial(run.func, *self.flights.instead(call, run.args), **run.keywords)
        try:
            with torch.no_grad() if call.direct else nullcontext():
                work = super().make(call, run)
        except Exception:
            if call.number in self._announced:
                self.report({"what": "continues", "thread": threading.get_ident()})
            raise
        self._requests[call.number] = work  # dropped by its owner, it would take its message with it
        return work

    @unnoticed
    def waiting(self, call: Call) -> None:
        """Report where the rank begins to wait, and whether other threads of it run on, if the post has not."""
        if call.number in self._awaited and call.op.point_to_point:
            what = f"the request of {text_of(call)} was already waited for: a message arrives once"
            raise self._here(RequestError, "waited for twice", what)
        self._awaited.add(call.number)
        if call.completed is None and call.number not in self._announced:
            self._follow(call, self._report_wait(call, _place(call, sys._getframe(1))))

    def _report_wait(self, call: Call, place: tuple[str, int], *before: dict[str, Any]) -> int:
        """Report a wait, after something else. Returns how many other threads of the rank run on."""
        me = threading.get_ident()
        name = "" if threading.current_thread() is threading.main_thread() else threading.current_thread().name
        waits = {"what": "wait", "number": call.number, "file": place[0], "line": place[1]}
        others = self._running()
        self.report(*before, waits | {"thread": me, "name": name, "others": others})
        return others

    def polled(self, call: Call) -> None:
        """Report a rank that does nothing but ask whether a call is complete as one that waits for it."""
        me, now = threading.get_ident(), time.monotonic()
        since, posted, told = self._polls.get(me, (now, -1, set()))
        if posted != len(self.calls):
            since, told = now, set()
        self._polls[me] = since, len(self.calls), told
        if now - since > _POLLED and call.number not in told:
            told.add(call.number)
            self._follow(call, self._report_wait(call, _place(call, sys._getframe(1))))

    def _polls_no_more(self) -> None:
        """This thread continues: it polled, and did not wait."""
        _, _, told = self._polls.pop(threading.get_ident(), (0.0, 0, ()))
        if told:
            self.report({"what": "continues", "thread": threading.get_ident()})

    def source_asked(self, call: Call, frame: FrameType) -> None:
        """Report a receive from any rank whose sender is looked at: then it need not matter which was first."""
        while frame.f_back is not None and _between(frame.f_code.co_filename):
            frame = frame.f_back
        if call.function != "recv_object_list" and result_used(frame):  # that one receives twice, and wants one sender
            self.report({"what": "source used", "number": call.number})

    @unnoticed
    def completed(self, call: Call) -> None:
        """The rank may touch the call's buffers again."""
        fresh = call.completed is None
        changed = self.flights.settle(call)
        self.flights.end(call)
        self._requests.pop(call.number, None)
        if changed:
            raise self._touched(changed, "modified")
        if fresh:
            now = {"tick": self.tick, "end": time.monotonic()}
            said = {"what": "completed", "number": call.number, "peer": call.peer, **now}
            if call.op is Op.RECV and call.root is None:
                self.report(said)  # from any rank: its source decides
            else:
                self._report_later(said)
            checks.check_result(call, self.rank)
            self.copies.received(call, self.rank)
        super().completed(call)

    def no_future(self, call: Call) -> None:
        """Raises RequestError: gloo has no future for a message."""
        what = f"{call.function} gives no future: on gloo a message completes in wait()"
        raise self._here(RequestError, "no future", what, "call its wait(), in a thread of its own if need be")

    def future_taken(self, call: Call, future: torch.futures.Future) -> torch.futures.Future:
        """A future counts as a wait: its holder may wait where the tap cannot see."""
        self._given_as_futures.add(call.number)
        self.flights.end(call)
        self.report({"what": "future", "number": call.number})
        future = self.futures.of(call, future)
        return future.then(partial(self._settled, call)) if self.flights.owes(call) else future

    def wait_in_future(self, calls: list[tuple[Call, Callable[[], Any]]], wait: Callable[[], Any]) -> Any:
        """Report a wait for each of the calls in turn, then wait for what is made from their results."""
        for call, wait_for_it in calls:
            self.waiting(call)
            with suppress(Exception):  # which `wait` raises, too
                wait_for_it()
        return wait()

    def _settled(self, call: Call, future: torch.futures.Future) -> Any:
        """What a future gives, once the caller's own tensors hold the result."""
        result = self.flights.back(call, future.value())
        if changed := self.flights.settle(call):
            raise self._touched(changed, "modified")
        return result

    def report(self, *reports: dict[str, Any]) -> None:
        """Report to the supervisor, in one message with what has waited. Until the first call none is sent."""
        with self._reporting:
            reports, self._pending = (*self._pending, *reports), []
            if reports and self._channel.asked:
                self._channel.send(wire.MessageKind.EVENT, json.dumps(reports).encode())

    def _report_later(self, report: dict[str, Any]) -> None:
        """Report with whatever is told next, or at the end: nothing hangs on it."""
        with self._reporting:
            self._pending.append(report)

    def _running(self, waiting: threading.Thread | None = None) -> int:
        """Threads of this rank, other than the one that waits, that may still post something."""
        waiting = waiting or threading.current_thread()
        others = (t for t in threading.enumerate() if t is not waiting and not t.name.startswith(OURS))
        return sum(not isinstance(t, threading._DummyThread) and not idle(t, self.order) for t in others)

    def _follow(self, call: Call, others: int) -> None:
        """Report when other threads of this rank have come to rest, while this one still waits for `call`."""
        waiting = threading.current_thread()

        def follow() -> None:
            left = others
            while left and self.on and call.completed is None:
                sleep(_FOLLOW)
                if (running := self._running(waiting)) < left:
                    left = running
                    self.report({"what": "running", "others": left, "thread": waiting.ident})

        if others:
            threading.Thread(target=follow, name=_FOLLOWER, daemon=True).start()

    def _noticed(self, error: BaseException, file: str, line: int) -> None:
        if self._caught < _CAUGHT and not isinstance(error, RankError):
            self._caught += 1
            what = f"{type(error).__name__}: {error} at {frames.display(file)}:{line}"
            self.report({"what": "caught", "error": what[:200]})

    def _touched(self, flight: OpenCall, how: str, by: Call | None = None) -> RankError:
        """The error of code, or of another call, that reads or writes a buffer in flight."""
        call = flight.call
        made = f"{text_of(call)} at {frames.display(call.file)}:{call.line}"
        if flight.filling:
            what = f"the buffer of {made} is unfilled until wait(), and was {how} before"
            fix = "call wait() first"
        else:
            what = f"the buffer of {made} was modified before wait()"
            fix = "call wait() first, or send a copy: x.clone()"
        by = by or self.flights.filled_by(flight)
        if by is not None and by.function in _REQUESTS:
            fix = f"{text_of(by)} uses the same memory: give it a tensor of its own, x.clone() or torch.empty_like(x)"
        return self._here(RequestError, f"{how} before wait", what, fix, otherwise=call)

    def _touched_before(self, call: Call, touch: Touch) -> RankError:
        """The error of a thread that touched a buffer before a call that might as well have come first."""
        how, state = ("modified", "in flight") if touch.writes else ("read", "unfilled until wait()")
        made = f"{text_of(call)} at {frames.display(call.file)}:{call.line}"
        what = f"the buffer of {made} is {state}, and thread {touch.thread!r} {how} it: before or after is a race"
        place = {"file": touch.where.file or call.file, "line": touch.where.line or call.line}
        found = RequestError(f"{how} before wait", what, "let one thread wait for the other", rank=self.rank, **place)
        self._accuse(found)
        return found

    def _saving(self, save: Callable[..., None]) -> Callable[..., None]:
        """`torch.save` reads memory behind torch's back: look at what it is given."""

        def guarded(*args: Any, **options: Any) -> None:
            what = args[0] if args else options.get("obj")
            for tensor in tensors_of(what) if self.flights.any else ():
                if flight := self.flights.touched(tensor, writes=False):
                    raise self._touched(flight, "read")
            save(*args, **options)

        return guarded

    def _here(self, error: type[RankError], kind: str, *details: str, otherwise: Call | None = None) -> RankError:
        """An error at the line of the caller's code that runs now; at that of a call, where it has returned."""
        where = frames.own(frames.of_stack(sys._getframe(1)))
        place = otherwise if otherwise and not where.file else where
        found = error(kind, *details, rank=self.rank, file=place.file, line=place.line)
        self._accuse(found)
        return found

    def _outlast(self, before: set[threading.Thread]) -> None:
        """Give threads that the function left running a moment to show whether they communicate."""
        deadline = time.monotonic() + _OUTLAST
        ours = {t for t in threading.enumerate() if t.name.startswith(OURS) or isinstance(t, threading._DummyThread)}
        for thread in set(threading.enumerate()) - before - ours:
            while thread.is_alive() and not idle(thread, self.order) and time.monotonic() < deadline:
                thread.join(0.005)

    def _check_copies(self) -> None:
        """Raises TensorError where a message went into a temporary copy that is gone."""
        if (call := self.copies.lost()) is not None:
            what = "the buffer was a temporary copy: indexing with a list, .contiguous() and .float() make one"
            fix = "receive into a variable, then copy it to where it belongs: x[index] = received"
            raise checks.at(call, self.rank, TensorError, "temporary buffer", what, fix)

    def _check_end(self) -> None:
        """Raises what is left wrong when the function has returned."""
        self._check_copies()
        for call in self.calls:
            if call.direct and call.completed is None and call.number not in self._given_as_futures:
                what = f"request never waited for: {call.function} gives a request, and nobody called its wait()"
                raise checks.at(call, self.rank, RequestError, "never waited for", what)
        if error := self.gradients.check(self.rank):
            raise error


def _place(call: Call, frame: FrameType) -> tuple[str, int]:
    """File and line of the caller's code that runs now; those of a call, where it has returned."""
    where = frames.own(frames.of_stack(frame))
    return (where.file, where.line) if where.file else (call.file, call.line)


def _goes_on(call: Call, frame: FrameType | None) -> bool | None:
    """True where the caller of a call continues before it is complete: `isend`, `irecv`, `async_op=True`; False where
    the call waits, None where one can't know."""
    if call.function in _REQUESTS:
        return True
    while frame is not None:
        if frame.f_code.co_name == call.function and frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return False if call.function in _BLOCKING else frame.f_locals.get("async_op")
        frame = frame.f_back
    return None  # a method of the group itself


def _between(file: str) -> bool:
    """True for a file that lies between a caller and the group."""
    return file.endswith(PUBLIC) or frames.machinery(file)
