"""What the threads of one rank know of each other: which call came before which, however the scheduler ran them.

One event happened before another if a chain of starts, joins, queues, events and futures leads from it to the other
(Lamport 1978); vector clocks tell (Fidge 1988, Mattern 1989). What no chain orders is a race, also in a run in which
one thread happened to be long done when the other began.

A lock keeps two threads from a buffer at the same time, and so makes a chain for what they do with memory. For the
order of their calls it makes none: whoever comes first has it first, and that may differ from rank to rank.
"""

import asyncio
import concurrent.futures
import dis
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...trace import frames
from ...trace.requests import OURS
from .patches import replaced

Clock = dict[int, int]  # events of each thread

_SAYS = {"dist", "distributed", "is_completed"}  # names by which a program speaks to other ranks
_SHORT = 5  # lines of a loop that only looks
_POLLS = 3  # sleeps in one line, one after the other: a loop that looks whether something has happened


class Stamp(NamedTuple):
    """An event of a thread: its number among those of that thread."""

    thread: int
    count: int


class Order:
    """The clocks of the threads of a rank, and of what they synchronize with.

    Args:
        memory: another one, which hears of the same, and of locks.
    """

    def __init__(self, memory: "Order | None" = None) -> None:
        self.memory = memory
        self.running = 0  # threads that have started and not ended
        self._lock = threading.RLock()  # an object that the collector finds may take part in the middle of this
        self._next = count()
        self._numbers: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
        self._clocks: WeakKeyDictionary[Any, Clock] = WeakKeyDictionary()  # of threads, queues, events, futures
        self._sleeps: WeakKeyDictionary[threading.Thread, tuple[Any, int]] = WeakKeyDictionary()

    def stamp(self) -> Stamp:
        """An event of this thread, now."""
        with self._lock:
            number, clock = self._mine()
            clock[number] += 1
            self._sleeps.pop(_me(), None)
            return Stamp(number, clock[number])

    def knows(self, stamp: Stamp) -> bool:
        """True where that event happened before whatever this thread does now."""
        with self._lock:
            number, clock = self._mine()
            if stamp.thread == number or clock.get(stamp.thread, 0) >= stamp.count:
                return True
            if not _has_polled(sys._getframe(1)):
                return False
            self._takes_all()
            return True

    def gives(self, thing: Any) -> None:
        """Whoever takes from `thing` later knows what this thread has done so far."""
        if self.memory is not None:
            self.memory.gives(thing)
        with self._lock:
            number, clock = self._mine()
            _merge(self._clocks.setdefault(thing, {}), clock)
            clock[number] += 1

    def takes(self, thing: Any) -> None:
        """This thread knows what was given to `thing`; of a thread, all that it has done."""
        if self.memory is not None:
            self.memory.takes(thing)
        with self._lock:
            _merge(self._mine()[1], self._clocks.get(thing, {}))

    def sleeps(self, code: CodeType, offset: int) -> None:
        """This thread sleeps, somewhere in its code. If it looks whether another one is done, it may know that one."""
        with self._lock:
            thread = _me()
            before, times = self._sleeps.get(thread, (None, 0))
            times = times + 1 if before == (code, offset) else 1
            self._sleeps[thread] = (code, offset), times
            if times >= _POLLS or any(start <= offset < end for start, end in _polls(code)):
                self._takes_all()

    def _takes_all(self) -> None:
        for other in list(self._numbers):
            self.takes(other)

    def _mine(self) -> tuple[int, Clock]:
        thread = _me()
        if thread not in self._numbers:
            self._numbers[thread] = next(self._next)
            self._clocks.setdefault(thread, {})
        number, clock = self._numbers[thread], self._clocks[thread]
        clock.setdefault(number, 0)
        return number, clock


def _merge(into: Clock, other: Clock) -> None:
    for thread, events in other.items():
        into[thread] = max(into.get(thread, 0), events)


def _me() -> threading.Thread:
    """This thread; the main one, where it is none of Python's, or still on its way up."""
    return threading._active.get(threading.get_ident()) or threading.main_thread()  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def _polls(code: CodeType) -> list[tuple[int, int]]:
    """The short `while` loops of a function that say nothing to other ranks: they look until something has happened."""
    instructions = list(dis.get_instructions(code))
    found = []
    for jump in instructions:
        if "JUMP_BACKWARD" in jump.opname:
            loop = [each for each in instructions if jump.argval <= each.offset <= jump.offset]
            lines = {each.positions.lineno for each in loop if each.positions and each.positions.lineno}
            says = any(each.opname == "FOR_ITER" or each.argval in _SAYS for each in loop)
            if len(lines) <= _SHORT and not says:
                found.append((jump.argval, jump.offset))
    return found


def _has_polled(frame: FrameType | None) -> bool:
    """True where a function that runs may have looked whether another thread is done: it knows more than we can."""
    return any(start <= own.f_lasti for own in frames.own_stack(frame) for start, _ in _polls(own.f_code))


Around = Callable[[Order, Callable[..., Any], Any, tuple, dict], Any]  # order, the method, its object, its arguments


def _gives(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    order.gives(thing)
    return method(thing, *args, **options)


def _takes(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    result = method(thing, *args, **options)
    if result is not False:  # a wait that has not ended in time
        order.takes(thing)
    return result


def _both(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    order.gives(thing)
    return _takes(order, method, thing, args, options)


def _joined(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    method(thing, *args, **options)
    thing.is_alive()  # which takes, where it is not


def _acquired(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    if sys._getframe(2).f_code.co_filename == pools.__file__:  # a pool asks whether a worker happens to be idle
        return method(thing, *args, **options)
    return _takes(order, method, thing, args, options)


def _takes_first(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    order.takes(thing)
    return method(thing, *args, **options)


def _handle(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    order.takes(thing._loop)
    return method(thing, *args, **options)


def _waited(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    futures = list(thing)
    result = method(futures, *args, **options)
    for future in futures:
        if future.done():
            order.takes(future)
    return result


class _Lock:
    """A lock of the caller's, of which an order hears."""

    def __init__(self, lock: Any, order: Order) -> None:
        self._lock, self._order = lock, order

    def acquire(self, *args: Any, **options: Any) -> bool:
        taken = self._lock.acquire(*args, **options)
        if taken:
            self._order.takes(self)
        return taken

    def release(self) -> None:
        self._order.gives(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class _SimpleQueue(queue.SimpleQueue):
    """One whose methods can be replaced."""


_SYNCHRONIZE: tuple[tuple[Any, str, Around], ...] = (
    (threading.Event, "set", _gives),
    (threading.Event, "wait", _takes),
    (threading.Event, "is_set", _takes),
    (threading.Semaphore, "release", _gives),
    (threading.Semaphore, "acquire", _acquired),
    (threading.Condition, "notify", _gives),
    (threading.Condition, "wait", _takes),
    (threading.Condition, "__enter__", _takes),
    (threading.Condition, "__exit__", _gives),
    (threading.Barrier, "wait", _both),
    (threading.Thread, "join", _joined),
    (queue.Queue, "put", _gives),
    (queue.Queue, "get", _takes),
    (queue.Queue, "task_done", _gives),
    (queue.Queue, "join", _takes),
    (_SimpleQueue, "put", _gives),
    (_SimpleQueue, "get", _takes),
    (pools._WorkItem, "__init__", _gives),
    (pools._WorkItem, "run", _takes_first),
    (concurrent.futures.Future, "set_result", _gives),
    (concurrent.futures.Future, "set_exception", _gives),
    (concurrent.futures.Future, "result", _takes),
    (concurrent.futures.Future, "exception", _takes),
    (concurrent.futures.Future, "done", _takes),
    (asyncio.BaseEventLoop, "call_soon_threadsafe", _gives),
    (asyncio.Handle, "_run", _handle),
    (concurrent.futures, "wait", _waited),
)


@contextmanager
def ordered_threads(order: Order, around: Callable[[], Any]) -> Iterator[None]:
    """Have `order` hear of what orders threads, and run each thread that starts inside within `around()`."""
    start, alive, sleep = threading.Thread.start, threading.Thread.is_alive, time.sleep
    memory = order.memory or order

    def started(self: threading.Thread) -> None:
        run = self.run

        def run_inside() -> None:
            try:
                with around():
                    run()
            finally:
                memory.running -= 1
                del self.run  # what holds the thread

        if not self.name.startswith(OURS):
            self.run = run_inside  # type: ignore[method-assign]
            memory.running += 1
        order.gives(self)
        start(self)

    def is_alive(self: threading.Thread) -> bool:
        living = alive(self)
        if not living:
            order.takes(self)
        return living

    def asleep(seconds: float) -> None:
        sleep(seconds)
        frame = sys._getframe(1)
        order.sleeps(frame.f_code, frame.f_lasti)

    with ExitStack() as stack:
        for owner, name, hears in _SYNCHRONIZE:
            stack.enter_context(replaced(owner, name, _heard(order, getattr(owner, name), hears)))
        stack.enter_context(replaced(queue, "SimpleQueue", _SimpleQueue))
        for name in ("Lock", "RLock"):
            stack.enter_context(replaced(threading, name, partial(_locked, getattr(threading, name), memory)))
        stack.enter_context(replaced(threading.Thread, "start", started))
        stack.enter_context(replaced(threading.Thread, "is_alive", is_alive))
        stack.enter_context(replaced(time, "sleep", asleep))
        yield


def _locked(make: Callable[[], Any], order: Order) -> _Lock:
    return _Lock(make(), order)


def _heard(order: Order, method: Callable[..., Any], hears: Around) -> Callable[..., Any]:
    @functools.wraps(method)
    def heard(thing: Any, *args: Any, **options: Any) -> Any:
        return hears(order, method, thing, args, options)

    return heard
