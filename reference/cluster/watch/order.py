"""What the threads of one rank know of each other: which call came before which, however the scheduler ran them.

One event happened before another if a chain of starts, joins, queues, events and futures leads from it to the other
(Lamport 1978); vector clocks tell (Fidge 1988, Mattern 1989). What no chain orders is a race, also in a run in which
one thread happened to be long done when the other began.

A lock keeps two threads from a buffer at the same time, and so makes a chain for what they do with memory. For the
order of their calls it makes none: the first thread to come has it first, and that may differ from rank to rank.
"""

import dis
import functools
import sys
import threading
from itertools import count
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...trace import frames

Clock = dict[int, int]  # events of each thread

_SAYS = {"dist", "distributed", "is_completed"}  # names by which a program speaks to other ranks
_SHORT = 5  # lines of a loop that only looks
_POLLS = 3  # sleeps in one line, one after the other: a loop that looks whether something has happened


class Stamp(NamedTuple):
    """An event of a thread: its number among those of that thread."""

    thread: int
    count: int


class Look(NamedTuple):
    """A thread has looked at an event, a thread or a future, and nothing had happened yet."""

    thing: Any = None
    code: CodeType | None = None
    offset: int = 0  # in the code


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
            if times >= _POLLS or any(start <= offset < end for start, end in _polls(code)):
                self._takes_all()

    def looks(self, thing: Any, code: CodeType, offset: int) -> None:
        """This thread has looked, somewhere in its code, and nothing had happened."""
        self._looks[_me()] = Look(thing, code, offset)

    def looked(self, thread: threading.Thread) -> Look:
        """Where a thread looked last."""
        return self._looks.get(thread, Look())

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


@functools.lru_cache(maxsize=256)
def _polls(code: CodeType) -> list[tuple[int, int]]:
    """The short `while` loops of a function that say nothing to other ranks: they look until something has happened."""
    found = []
    for loop in loops(code):
        lines = {each.positions.lineno for each in loop if each.positions and each.positions.lineno}
        says = any(each.opname == "FOR_ITER" or each.argval in _SAYS for each in loop)
        if len(lines) <= _SHORT and not says:
            found.append((loop[0].offset, loop[-1].offset))
    return found


def loops(code: CodeType) -> list[list[dis.Instruction]]:
    """The instructions of each loop of a function, from its beginning to its jump back."""
    instructions = list(dis.get_instructions(code))
    jumps = [each for each in instructions if "JUMP_BACKWARD" in each.opname]
    return [[each for each in instructions if jump.argval <= each.offset <= jump.offset] for jump in jumps]


def _has_polled(frame: FrameType | None) -> bool:
    """True where a function that runs may have looked whether another thread is done: it knows more than we can."""
    return any(start <= own.f_lasti for own in frames.own_stack(frame) for start, _ in _polls(own.f_code))
