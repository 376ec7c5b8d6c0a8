"""A wait ends with its call, with its error, or with the round; and each call of a group is one that waits so."""

import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import Work

from reference.cluster import Cluster
from reference.resilience import round_group
from reference.resilience.lab.faults import hang
from reference.resilience.membership import Membership
from reference.resilience.round_group import PATIENCE, RoundGroup, RoundOver, UntilOver, world
from reference.resilience.store import reach, serve
from reference.trace.tap import Tap


class Ends(Work):
    """A call that ends when it is told to, as gloo's end: a wait that is too short is an error, and may come again."""

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.ended, self.error = threading.Event(), error

    def is_completed(self) -> bool:
        return self.ended.is_set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self.ended.wait(timeout.total_seconds() or None):
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)
        return True


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the round is over."""
    event = threading.Event()
    monkeypatch.setattr(round_group._now, "over", event.is_set)
    return event


def test_a_call_that_ends_late_is_waited_for(over: threading.Event) -> None:
    work = Ends()
    threading.Timer(0.3, work.ended.set).start()
    assert UntilOver(work).wait()


def test_its_error_is_the_waiters(over: threading.Event) -> None:
    work = Ends("Connection closed by peer")
    threading.Timer(0.3, work.ended.set).start()
    with pytest.raises(RuntimeError, match="closed by peer"):
        UntilOver(work).wait()


def test_a_call_that_gloo_forgets_is_left_when_the_round_is_over(over: threading.Event, patience: float) -> None:
    threading.Timer(0.3, over.set).start()
    began = time.monotonic()
    with pytest.raises(RoundOver):
        UntilOver(Ends()).wait()
    assert 0.3 <= time.monotonic() - began < 0.3 + 0.5 * patience


def test_a_call_that_has_ended_counts_also_after_the_round(over: threading.Event) -> None:
    work = Ends()
    work.ended.set()
    over.set()
    assert UntilOver(work).wait()


def test_each_call_that_a_group_has_is_one_that_waits_so() -> None:
    of_a_group = {name for name in vars(Tap) if not name.startswith("__")} - {"creator", "_make", "_splits", "shutdown"}
    assert of_a_group - {"monitored_barrier"} <= set(vars(RoundGroup))  # which blocks by itself, and is not called here


MESSAGE = 64_000_000  # float32: far more than sockets hold, so that it is under way when its other end dies


def half_a_message(port: int, sends: int) -> float:
    """Rank 1 dies in the middle of a message. Seconds after which the other has heard of it."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    membership = Membership(partial(reach, "127.0.0.1", port), f"{rank}", at_first=2)
    try:
        with world(membership.agree(), membership, connected=PATIENCE):
            dist.barrier()
            say = dist.isend if rank == sends else dist.irecv
            work = say(torch.zeros(MESSAGE), 1 - rank)
            if rank == 1:
                hang(0.5)
            began = time.monotonic()
            with pytest.raises(RuntimeError):
                work.wait()
            return time.monotonic() - began
    finally:
        membership.close()


@pytest.mark.parametrize("sends", [0, 1], ids=["its receiver dies", "its sender dies"])
def test_half_a_message_keeps_no_rank_waiting(sends: int, patience: float) -> None:
    """gloo by itself lets the other end wait for as long as its group allows: half an hour, where nothing is said."""
    store = serve()
    with Cluster(2, timeout=40 + PATIENCE) as cluster:
        waited, _ = cluster.survive(half_a_message, store.port, sends)
    assert waited < 3 + patience < PATIENCE
