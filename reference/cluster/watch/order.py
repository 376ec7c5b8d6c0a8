"""What the threads of one rank know of each other: which call came before which, however the scheduler ran them.

One event happened before another if a chain of starts, joins, queues, events and futures leads from it to the other
(Lamport 1978); vector clocks tell (Fidge 1988, Mattern 1989). What no chain orders is a race, also in a run in which
one thread happened to be long done when the other began.

A lock keeps two threads from a buffer at the same time, and so makes a chain for what they do with memory. For the
order of their calls it makes none: the first thread to come has it first, and that may differ from rank to rank.
"""

import sys
import threading
from itertools import count
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...trace import frames
from .polling import Loop, polls

Clock = dict[int, int]  # events of each thread

_POLLS = 3  # sleeps in one line, one after the other: a loop that looks whether something has happened


class Stamp(NamedTuple):
    """An event of a thread: its number among those of that thread."""

    thread: int
    count: int


class Look(NamedTuple):
    """A thread has looked whether an event is set, or a thread or a future done."""

    thing: Any = None
    code: CodeType | None = None
    line: int = 0


class Order:
    """The clocks of the threads of a rank, and of what they synchronize with.

    Args:
        memory: another one, which is told the same, and of locks.
    """

    def __init__(self, memory: "Order | None" = None) -> None:
        self.memory = memory
        self.running = 0  # threads that have started and not ended
        self._lock = threading.RLock()  # an object that the collector finds may take part in the middle of this
        self._next = count()
        self._numbers: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
        self._clocks: WeakKeyDictionary[Any, Clock] = WeakKeyDictionary()  # of threads, queues, events, futures
        self._sleeps: WeakKeyDictionary[threading.Thread, tuple[Any, int]] = WeakKeyDictionary()
        self._looks: WeakKeyDictionary[threading.Thread, Look] = WeakKeyDictionary()
        self._looked: set[tuple[CodeType, int]] = set()  # lines where an order hears of what is looked at

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
            if not self._has_polled(sys._getframe(1)):
                return False
            self._takes_all()
            return True

    def gives(self, thing: Any) -> None:
        """What takes from `thing` later knows what this thread has done so far."""
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
            loops = [loop for loop in polls(code) if loop.start <= offset < loop.end]
            if (not loops and times >= _POLLS) or any(self._unheard(code, loop) for loop in loops):
                self._takes_all()

    def looks(self, thing: Any) -> None:
        """This thread looks at something. `takes` says what it has learned."""
        if self.memory is not None:
            self.memory.looks(thing)
        own = next(frames.own_stack(sys._getframe(1)), None)
        if own is not None:
            self._looks[_me()] = Look(thing, own.f_code, own.f_lineno)
            self._looked.add((own.f_code, own.f_lineno))

    def looked(self, thread: threading.Thread) -> Look:
        """Where a thread looked last."""
        return self._looks.get(thread, Look())

    def _has_polled(self, frame: FrameType | None) -> bool:
        """True where a function that runs may have looked whether another thread is done: it knows more than we can."""
        stack = frames.own_stack(frame)
        return any(loop.start <= f.f_lasti and self._unheard(f.f_code, loop) for f in stack for loop in polls(f.f_code))

    def _unheard(self, code: CodeType, loop: Loop) -> bool:
        """True for a loop that looks at something of which an order does not hear."""
        return not (loop.looks and any((code, line) in self._looked for line in loop.lines))

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
    """This thread; the main one, where it is none of Python's, or still starting."""
    return threading._active.get(threading.get_ident()) or threading.main_thread()  # type: ignore[attr-defined]
