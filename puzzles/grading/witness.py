"""What the owner of the ranks sees of them by itself, through the kernel: nothing that a rank says is asked for."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_LOOK = 0.02  # seconds between two looks
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # of the kernel, in a second
_USER, _SYSTEM = 11, 12  # places in /proc/PID/stat behind the name, which may hold blanks and brackets


class ProcessorTime:
    """Processor time of processes since this was made, in seconds: user and system, of all threads.

    Time in which a process waits, or others have the processor, does not count. Zero where there is no /proc.

    Args:
        pids: gives the process ids whenever it is asked; processes that come up later count from their start.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._before = {pid: used(pid) for pid in pids()}

    def each(self) -> dict[int, float]:
        """Seconds of each process that is there."""
        return {pid: used(pid) - self._before.get(pid, 0.0) for pid in self._pids()}

    @property
    def seconds(self) -> float:
        """Of the process that has used most."""
        return max(self.each().values(), default=0.0)


def used(pid: int) -> float:
    """Seconds of processor time that a process has used until now; 0 where it is gone, or nobody knows."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


class Limit:
    """Ends a process that uses more processor time than it may. Whether it had to says `exceeded`."""

    def __init__(self, pids: Callable[[], Sequence[int]], seconds: float) -> None:
        self.exceeded = False
        self._time, self._seconds, self._done = ProcessorTime(pids), seconds, threading.Event()

    def watch(self) -> None:
        """Look until `end`; to be run in a thread."""
        while not self._done.wait(_LOOK):
            for pid, seconds in self._time.each().items():
                if seconds > self._seconds and not self._done.is_set():
                    self.exceeded = True
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if self.exceeded:
                return

    def end(self) -> None:
        """Look no more."""
        self._done.set()


@contextlib.contextmanager
def limited(pids: Callable[[], Sequence[int]], seconds: float) -> Iterator[Limit]:
    """Within this, each of the processes may use so many seconds of processor time; then it is killed."""
    limit = Limit(pids, seconds)
    thread = threading.Thread(target=limit.watch, daemon=True)
    thread.start()
    try:
        yield limit
    finally:
        limit.end()
        thread.join()
