"""The grace period that ranks have before they are judged: those that still run show which one is the odd one.

A tenth of a second is enough for a rank that has a processor. On a busy machine one may still stand in the queue for
it: while one is ready to run, the period lasts, up to a second: it may as well compute.
"""

import time
from collections.abc import Callable

SHORT, LONG = 0.08, 1.0  # seconds until the first look at who is ready to run, and in any case
_AGAIN = 0.02  # seconds between two looks
_IDLE = 2  # looks in a row at which none was: a rank may sleep for an instant, in the kernel


class GracePeriod:
    """A grace period that begins now.

    Args:
        running: whether a rank that has yet to join, to wait or to finish is ready to run.

    Attributes:
        look: when to ask next whether it is over, on `time.monotonic`.
    """

    def __init__(self, running: Callable[[], bool]) -> None:
        self._running, self._idle = running, 0
        now = time.monotonic()
        self.look, self._end = now + SHORT, now + LONG

    @property
    def over(self) -> bool:
        """Whether there is no more to wait for."""
        now = time.monotonic()
        if self.look <= now < self._end and self._idle < _IDLE:
            self._idle = 0 if self._running() else self._idle + 1
            self.look = now + _AGAIN
        return now >= self._end or self._idle >= _IDLE
