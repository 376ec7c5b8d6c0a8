"""Preemption: a scheduler takes the machines back, and says so shortly before.

Slurm and Kubernetes send SIGTERM, and some seconds later SIGKILL. Until then there is time for one more checkpoint:

    the signal     comes to one rank, to some, or to all; a handler that only takes note of it
    agree          between two steps: was any rank told? All know after the next step, and stop then, after the same one
    save           and wait until the checkpoint has its name
    leave          with exit code 143 = 128 + SIGTERM: this run has not failed, and `--resume` continues it

| what says it      | signals                           | how long                                                     |
|-------------------|-----------------------------------|--------------------------------------------------------------|
| Slurm, preemption | SIGTERM (and SIGCONT) to all      | `GraceTime` of the partition, then SIGKILL                   |
| Slurm, time limit | SIGTERM to all                    | `KillWait`, 30 s; sooner with `--signal=TERM@120`            |
| Kubernetes        | SIGTERM to process 1 of each pod  | `terminationGracePeriodSeconds`, 30 s, then SIGKILL          |
| torchrun          | passes SIGTERM on to its ranks    | 30 s, then SIGKILL                                           |

A handler must not save by itself: it runs in the middle of a step, on one rank. An answer at once would make ranks wait
for the slowest between any two steps, also in all the weeks in which none is told; so it is read a step later. No clock
is read: whether the grace period is long enough for two steps and a save is the person's business.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PREEMPTED = 128 + signal.SIGTERM
"""The exit code of a run that was told to stop, and has saved: what a shell says of SIGTERM."""


class Preempted(Exception):
    """A run was told to stop, has saved, and can be resumed. The message is one line that says from where."""


@dataclass
class StopNotice:
    """Whether this rank was told to stop."""

    given: bool = False

    def give(self) -> None:
        """Take note, and nothing else: a signal comes in the middle of whatever this process does."""
        self.given = True


@contextmanager
def on_sigterm(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` whenever SIGTERM comes, instead of ending this process.

    Only the main thread of a process can handle signals: elsewhere SIGTERM does what it did before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
