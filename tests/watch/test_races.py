"""Receives from any rank, where reports of ranks reach the supervisor late: the first is what the receiver says."""

import pytest

from reference.cluster.errors import MismatchError, RaceError
from tests.watch.told import Told


def one_after_the_other(told: Told, *, last_elements: int = 2) -> None:
    """Rank 0 hears of 1, of 2 and of 1, each when it has told them to. That rank 2 has sent is the last to be known."""
    told(1, "send", 0)
    told(0, "recv", None), told.heard(0, 1)
    told(0, "send", 2), told(0, "recv", None)
    told(2, "recv", 0)
    told.heard(0, 2)
    told(0, "send", 1), told(1, "recv", 0)
    told(1, "send", 0, last_elements)
    told(0, "recv", None), told.heard(0, 1)
    told(2, "send", 0)


def test_a_late_report_makes_no_race() -> None:
    told = Told()
    one_after_the_other(told)
    assert told.verdict() is None


def test_a_late_report_makes_no_message_the_wrong_size() -> None:
    told = Told()
    told(1, "send", 0, 3)
    told(0, "recv", None, 2)  # which might be the one from rank 1
    assert told.supervisor.judge() is None
    told(2, "send", 0, 2), told.heard(0, 2)
    told(0, "recv", 1, 3)
    assert isinstance(told.verdict(), RaceError), "rank 1's might have been first, and that is all that is wrong"


def test_what_has_come_must_have_the_right_size() -> None:
    told = Told()
    told(1, "send", 0, 3), told(0, "recv", None, 2), told.heard(0, 1)
    told.supervisor.finish(2)
    assert isinstance(told.supervisor.judge(), MismatchError)


def test_a_race_is_one_in_whatever_order_reports_come() -> None:
    told = Told()
    told(0, "recv", None), told(1, "send", 0), told.heard(0, 2)
    told(0, "recv", None), told.heard(0, 1)
    told(2, "send", 0)
    assert isinstance(told.verdict(), RaceError)


@pytest.mark.parametrize("rounds", (1, 3))
def test_a_guess_that_nobody_corrects_ends(rounds: int) -> None:
    """A holder of a receive's future waits out of sight: then a message may seem to come from what it led to."""
    told = Told()
    for _ in range(rounds):
        told(0, "recv", None), told(1, "send", 0)
        told(0, "recv", None), told(0, "send", 1), told(1, "recv", 0), told(1, "send", 0)
        told(2, "send", 0), told(0, "recv", None)
    told.verdict()
