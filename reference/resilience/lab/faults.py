"""Let a process die, hang or be stopped at the N-th point of its way: any function call of this project, or of torch's
distributed part, is a point.

A test that kills at random times hits what takes long. Points are everywhere: in the middle of a rendezvous, between
two halves of a step, while a copy is unpacked. The way is the same each time, but for what threads do.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

PLACES = ("/reference/", "/torch/distributed/")


def die() -> None:
    """End this process at once, as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang(seconds: float) -> None:
    """Stop this process, all of its threads; a child ends it after some seconds."""
    process = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)


def stand_still(end: Callable[[], object]) -> None:
    """Stop this process, all of its threads, until a child of it has done something, such as sleep."""
    process = os.getpid()
    if os.fork() == 0:
        end()
        os.kill(process, signal.SIGCONT)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)
    os.wait()


class Points:
    """Counts points from now on, on this thread.

    Args:
        at: the number of the point at which `do` is called; 0 for none.
        do: what is to happen there; by default the process kills itself.
    """

    def __init__(self, at: int = 0, do: Callable[[], None] = die) -> None:
        self.at, self.do, self.count = at, do, 0

    def __enter__(self) -> "Points":
        sys.setprofile(self._pass)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _pass(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and any(place in frame.f_code.co_filename for place in PLACES):
            self.count += 1
            if self.count == self.at:
                self.do()
