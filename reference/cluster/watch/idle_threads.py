"""Threads that wait for other threads, for certain.

What such a thread waits for may have happened before the thread has had the processor again: then it is about to
continue, and does not wait. So each way to wait has its own question: has it happened?
"""

import concurrent.futures
import selectors
import sys
import threading
from collections.abc import Callable
from concurrent.futures import _base as futures
from concurrent.futures import thread as pools
from types import CodeType, FrameType
from typing import Any

from ...trace import frames
from . import synchronize, torch_futures
from .order import Order
from .polling import polls

_MACHINERY = (
    "threading.py",
    "queue.py",
    "concurrent/futures/thread.py",
    "concurrent/futures/_base.py",
    "selectors.py",
    "asyncio/base_events.py",
    "cluster/watch/synchronize.py",
    "cluster/watch/torch_futures.py",
)


def idle(thread: threading.Thread, order: Order) -> bool:
    """True for a thread that does nothing until another one does something for it: a join, a queue, an event, a lock, a
    future, an event loop with nothing to do; or a loop that only looks whether an event is set, a thread or a future
    done.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and (_waits(frame) or _only_looks(frame, thread, order))


def _waits(frame: FrameType) -> bool:
    """True for a stack that ends in a wait without a time limit, for what has not happened."""
    happened = _HAPPENED.get(frame.f_code)
    if happened is None or happened(frame):
        return False
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename.endswith(_MACHINERY):
        if outer.f_code.co_name == "start" or outer.f_locals.get("timeout") not in (None, -1):
            return False  # a thread that starts another one waits for no more than that
        outer = outer.f_back
    return True


def _notified(frame: FrameType) -> bool:
    return frame.f_locals.get("waiter") not in frame.f_locals["self"]._waiters


def _ended(frame: FrameType) -> bool:
    return frame.f_locals["self"] not in threading.enumerate()


def _freed(frame: FrameType) -> bool:
    return not frame.f_locals["self"].held


def _filled(frame: FrameType) -> bool:
    return frame.f_locals["self"].under_way > 0


def _has_work(frame: FrameType) -> bool:
    return not frame.f_locals["work_queue"].empty()


def _set(frame: FrameType) -> bool:
    return torch_futures.done(frame.f_locals["future"])


def _has_events(frame: FrameType) -> bool:
    """Another thread has told an event loop to do something. Elsewhere, who knows what is selected for."""
    loop = frame.f_back.f_locals.get("self") if frame.f_back else None
    return bool(getattr(loop, "_ready", True))


_HAPPENED: dict[CodeType, Callable[[FrameType], bool]] = {
    threading.Condition.wait.__code__: _notified,  # and so of events, queues, semaphores, barriers, Python's futures
    threading.Thread.join.__code__: _ended,
    synchronize.Lock.acquire.__code__: _freed,
    synchronize.SimpleQueue.get.__code__: _filled,
    pools._worker.__code__: _has_work,
    torch_futures.wait_for_a_thread.__code__: _set,
    selectors.DefaultSelector.select.__code__: _has_events,
}
if sys.version_info < (3, 13):
    _HAPPENED[threading.Thread._wait_for_tstate_lock.__code__] = _ended  # type: ignore[attr-defined]


def _only_looks(frame: FrameType, thread: threading.Thread, order: Order) -> bool:
    """True for a thread in a loop that only looks, if what it looked for last has not happened."""
    thing, code, line = order.looked(thread)
    own = next(frames.own_stack(frame), None)
    if own is None or own.f_code is not code or _seen(thing):
        return False
    return any(loop.looks and line in loop.lines and loop.start <= own.f_lasti <= loop.end for loop in polls(code))


def _seen(thing: Any) -> bool:
    """True where a thread that looks again would see that it has happened."""
    match thing:
        case threading.Event():
            return thing._flag  # type: ignore[attr-defined]
        case threading.Thread():
            return thing not in threading.enumerate()
        case concurrent.futures.Future():
            return thing._state in (futures.FINISHED, futures.CANCELLED, futures.CANCELLED_AND_NOTIFIED)
    return True
