"""What orders threads, and how an `Order` is told: starts, joins, queues, events, futures, locks, pauses."""

import asyncio
import concurrent.futures
import functools
import queue
import sys
import threading
import time
from _thread import RLock
from collections.abc import Callable, Iterator
from concurrent.futures import _base as futures
from concurrent.futures import thread as pools
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from ...trace.requests import OURS
from .order import Order
from .patches import replaced

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


def _looked(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    """`wait` and `as_completed`, by whatever name they are called, begin with a look at which futures are done."""
    result = method(thing, *args, **options)
    for future in thing.futures:
        if future._state in (futures.FINISHED, futures.CANCELLED_AND_NOTIFIED):
            order.takes(future)
    return result


def _looked_at(order: Order, method: Callable[..., Any], thing: Any, args: tuple, options: dict) -> Any:
    order.looks(thing)
    return _takes(order, method, thing, args, options)


class Lock:
    """A lock of the caller's, of which an order hears: its memory, or all of it where one thread releases what another
    has acquired. That is a word to a thread that waits for it.
    """

    def __init__(self, lock: Any, order: Order) -> None:
        self._lock, self._order = lock, order
        self._owner = 0

    @property
    def held(self) -> bool:
        """True while any thread holds it."""
        return "unlocked" not in repr(self._lock)  # an RLock has no `locked` before Python 3.14

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner = threading.get_ident()
            self._order.takes(self)
        return taken

    def release(self) -> None:
        own = self._owner == threading.get_ident()
        order = (self._order.memory or self._order) if own else self._order
        order.gives(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class SimpleQueue(queue.SimpleQueue):
    """One whose methods can be replaced, and seen to wait.

    Attributes:
        under_way: items that were put and have not been taken. Python 3.13 hands one to a thread that waits, which may
            have yet to wake up while the queue is empty again.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._counting = RLock()  # a collected object may put something while this thread counts

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        with self._counting:
            self.under_way += 1
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        with self._counting:
            self.under_way -= 1
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get_nowait(self) -> Any:
        return self.get(block=False)


class _Now:
    """The order of the call that is being watched, if any is."""

    order: Order | None = None


def replace_for_good() -> None:
    """Replace what has no methods in Python that could be replaced while someone listens.

    For good, since code may take it by name before that: `from queue import SimpleQueue`, at the top of its module.
    """
    if queue.SimpleQueue is SimpleQueue:
        return
    queue.SimpleQueue = SimpleQueue  # type: ignore[misc]
    for name in ("Lock", "RLock"):
        setattr(threading, name, _lock(getattr(threading, name)))
    time.sleep = partial(_sleep, time.sleep)


def _lock(make: Callable[[], Any]) -> type:
    class Maker:  # a class, as in Python 3.13
        def __new__(cls) -> Any:
            return Lock(make(), _Now.order) if _Now.order else make()

    return Maker


def _sleep(sleep: Callable[[float], None], seconds: float) -> None:
    sleep(seconds)
    if _Now.order:
        frame = sys._getframe(1)
        _Now.order.sleeps(frame.f_code, frame.f_lasti)


_SYNCHRONIZE: tuple[tuple[Any, str, Around], ...] = (
    (threading.Event, "set", _gives),
    (threading.Event, "wait", _takes),
    (threading.Event, "is_set", _looked_at),
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
    (SimpleQueue, "put", _gives),
    (SimpleQueue, "get", _takes),
    (SimpleQueue, "put_nowait", _gives),
    (SimpleQueue, "get_nowait", _takes),
    (pools._WorkItem, "__init__", _gives),
    (pools._WorkItem, "run", _takes_first),
    (concurrent.futures.Future, "set_result", _gives),
    (concurrent.futures.Future, "set_exception", _gives),
    (concurrent.futures.Future, "result", _takes),
    (concurrent.futures.Future, "exception", _takes),
    (concurrent.futures.Future, "done", _looked_at),
    (asyncio.BaseEventLoop, "call_soon_threadsafe", _gives),
    (asyncio.Handle, "_run", _handle),
    (futures._AcquireFutures, "__enter__", _looked),
)


@contextmanager
def ordered_threads(order: Order, around: Callable[[], Any]) -> Iterator[None]:
    """Report to `order` what orders threads, and run each thread that starts inside within `around()`."""
    start, alive = threading.Thread.start, threading.Thread.is_alive
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
        order.looks(self)
        living = alive(self)
        if not living:
            order.takes(self)
        return living

    with ExitStack() as stack:
        for owner, name, wrap in _SYNCHRONIZE:
            stack.enter_context(replaced(owner, name, _wrapped(order, getattr(owner, name), wrap)))
        stack.enter_context(replaced(_Now, "order", order))
        stack.enter_context(replaced(threading.Thread, "start", started))
        stack.enter_context(replaced(threading.Thread, "is_alive", is_alive))
        yield


def _wrapped(order: Order, method: Callable[..., Any], wrap: Around) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(thing: Any, *args: Any, **options: Any) -> Any:
        return wrap(order, method, thing, args, options)

    return wrapped
