"""Clocks by which steps sleep, and in which they are measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What a step asks of a clock. The module `time` is one."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Return so much later."""


class VirtualTime:
    """A rank's clock that nothing but its own sleep moves: a step of sleeping takes what it should, to the nanosecond.

    How busy the machine is does not matter, and no rank waits for anything. A rank does not see here that another one
    is late, so it serves steps in which all ranks do the same.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@dataclass(frozen=True)
class Case:
    """A step of ranks that sleep, on a network that takes its time."""

    ranks: int
    step: Callable[[Clock], float]  # takes one, on every rank; the seconds that it took
    seconds: float  # that it should take
