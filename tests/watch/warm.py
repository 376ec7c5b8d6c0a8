"""Watched clusters that stay warm from case to case, and an alarm that no case outlasts."""

import contextlib
import faulthandler
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Self

import cloudpickle

import tests.watch
from reference.cluster import Cluster
from reference.cluster.errors import RankError
from tests.watch.cases import Correct, Mistake

LIMIT = 40.0  # seconds for a call that needs no limit; to reach it is to hang
ALARM = 120.0  # seconds until the alarm: longer than any limit, and than healing after it


# A case travels as if it had been typed into a notebook, with its helpers; ranks import none of these folders.
cloudpickle.register_pickle_by_value(tests.watch)


class Stuck(BaseException):
    """The cluster itself did not come back."""


@contextlib.contextmanager
def alarm(seconds: float = ALARM) -> Iterator[None]:
    """Raise `Stuck` in the main thread after some seconds; end the process where even that does not help."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Stuck(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(2 * seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What torch imports when a program first uses it: a second or more, which each fresh rank would spend again.
FRAMEWORKS = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)


def receive(program: Callable[..., Any]) -> None:
    """On a rank: to receive a program is to import what it names."""


@dataclass
class WarmClusters:
    """One cluster for each world size and limit, started when first needed."""

    clusters: dict[tuple[int, float], Cluster] = field(default_factory=dict)

    def run(self, case: Mistake | Correct) -> tuple[list[Any] | RankError, float]:
        """What a case returned, or the error that ended it, and the seconds until then."""
        limit = getattr(case, "deadline", None) or LIMIT
        begin = time.monotonic()
        try:
            outcome = self.call(case.world_size, limit, case.program, *case.args)
        except RankError as error:
            outcome = error
        return outcome, time.monotonic() - begin

    def warm_up(self, case: Mistake | Correct) -> None:
        """Have the ranks import what the case will use, so that its time is its own."""
        self.call(case.world_size, LIMIT, receive, case.program)

    def call(self, world_size: int, limit: float, program: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a program on the watched cluster of that size. A cluster that gets stuck is not used again."""
        key = (world_size, limit)
        if key not in self.clusters:
            self.clusters[key] = Cluster(world_size, watch=True, timeout=limit, preload=FRAMEWORKS)
        try:
            with alarm():
                return self.clusters[key].run(program, *args)
        except Stuck:
            self.clusters.pop(key).close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for cluster in self.clusters.values():
            cluster.close()
