"""A wait ends with its call, with its error, or with the round; and each call of a group is one that waits so."""

import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import Work

from reference.resilience import round_group
from reference.resilience.lab.half_a_message import heard_after
from reference.resilience.round_group import RoundGroup, RoundOver, UntilOver
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


def test_a_call_that_never_says_that_it_is_done_ends_with_its_wait(over: threading.Event) -> None:
    """As gloo's reduce-scatter of one rank."""
    work = Ends()
    work.ended.set()
    work.is_completed = lambda: False
    assert UntilOver(work).wait()


def test_each_call_that_a_group_has_is_one_that_waits_so() -> None:
    no_calls = {"creator", "ranks", "_make", "_splits", "shutdown"}
    of_a_group = {name for name in vars(Tap) if not name.startswith("__")} - no_calls
    assert of_a_group - {"monitored_barrier"} <= set(vars(RoundGroup))  # which blocks by itself, and is not called here


@pytest.mark.parametrize("sends", [0, 1], ids=["its receiver dies", "its sender dies"])
def test_half_a_message_keeps_no_rank_waiting(sends: int, patience: float) -> None:
    assert heard_after(sends) < 3 + patience


def test_gloo_by_itself_waits_for_as_long_as_its_group_allows() -> None:
    """The day this fails, gloo has been mended, and `round_group` needs no waits of its own."""
    assert heard_after(sends=0, patience=5) > 4.9
