"""How long a call may take: seconds in which its ranks could run, not those in which a busy machine kept them waiting.

From half of the limit on the kernel's books are kept: what the ranks computed, and how long they were ready to run and
had no processor (https://docs.kernel.org/scheduler/sched-stats.html). A call is over its limit when its ranks have
computed for the other half of it, together, or when that half has passed without such waits. A wait stands in the books
once it has ended: so no call is over while a thread of its ranks stands in the queue and does not move. Where the
kernel keeps no books, the limit is one of the clock.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_AT_MOST = 20  # times the limit, whatever the machine does
_TICKS = os.sysconf("SC_CLK_TCK")


class Books(NamedTuple):
    """Of some processes: seconds computed, and seconds ready to run without a processor."""

    computed: float
    delayed: float
    ready: Mapping[Path, int]  # threads that run or wait for a processor, and the nanoseconds that each has run


def books(processes: Sequence[int]) -> Books | None:
    """What the kernel has written down of processes with all their threads; None where it does not, or one is gone.

    What this thread has waited counts, too: while it sends arguments and reads results, the ranks wait for it.
    """
    try:
        computed = sum(map(_computed, processes))
        threads = [thread for each in processes for thread in Path(f"/proc/{each}/task").iterdir()]
        threads.append(Path(f"/proc/self/task/{threading.get_native_id()}"))
    except (OSError, ValueError, IndexError):
        return None
    delayed, ready = 0, {}
    for thread in threads:
        with contextlib.suppress(OSError):  # a thread has ended since; its process continues
            ran, waited = _scheduled(thread)
            delayed += waited
            if _is_ready(thread):
                ready[thread] = ran
    return Books(computed, delayed / 1e9, ready)


def _computed(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _scheduled(thread: Path) -> tuple[int, int]:
    """Nanoseconds that a thread has run, and those of its waits for a processor that have ended."""
    ran, delayed, _ = map(int, (thread / "schedstat").read_text().split())
    return ran, delayed


def _is_ready(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"


def ready(process: int) -> bool:
    """True where a thread of a process computes, or stands in the queue for a processor; False where none can tell."""
    with contextlib.suppress(OSError, IndexError):
        return any(map(_is_ready, Path(f"/proc/{process}/task").iterdir()))
    return False


class Patience:
    """The time of one call.

    Attributes:
        look: when to ask next whether it is over, on `time.monotonic`.
        busy: True where it was ended because the machine was too busy for too long.
    """

    def __init__(self, limit: float | None, processes: Sequence[int]) -> None:
        self._limit = limit or float("inf")
        self._processes = processes
        self._begin = time.monotonic()
        self._half = self._begin + self._limit / 2
        self._books: Books | None = None
        self._ready: Mapping[Path, int] = {}  # threads that were ready when the time seemed to be up
        self.look, self.busy = self._half, False

    @property
    def end(self) -> float:
        """When it is over in any case."""
        return self._begin + _AT_MOST * self._limit

    def over(self, now: float) -> bool:
        """Whether the time is up."""
        if now < self.look:
            return False
        if self.look == self._half:
            self._books, self.look = books(self._processes), self._begin + self._limit
            return False
        after = books(self._processes)
        clock, computed = self._left(now, after)
        left = min(clock, computed)
        if clock > 0:
            self._ready = {}
        elif computed > 0 and self._queued(after):
            left = self._limit / 100
        self.busy = left > 0 and now > self.end
        self.look = now + max(left, self._limit / 100)
        return left <= 0 or self.busy

    def _left(self, now: float, after: Books | None) -> tuple[float, float]:
        """Seconds that are left of the second half: of the clock, without waits, and of processor time."""
        before, half = self._books, self._limit / 2
        if before is None or after is None:
            return 0.0, 0.0
        passed = now - self._half - (after.delayed - before.delayed)
        return half - passed, half - (after.computed - before.computed)

    def _queued(self, after: Books) -> bool:
        """Whether a thread is ready, and has not run since the last look; the first look cannot tell."""
        before, self._ready = self._ready, after.ready
        return any(before.get(thread, ran) == ran for thread, ran in after.ready.items())
