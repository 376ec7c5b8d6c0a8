"""Calls that do not fit: which rank is told of does not depend on whose report is first."""

import time
from itertools import permutations

import pytest
import torch
import torch.distributed as dist

from reference.cluster.errors import MismatchError, RequestError
from reference.cluster.watch import grace_period
from tests.watch.told import Told


@pytest.mark.parametrize("odd", range(3))
def test_the_odd_one_is_blamed_however_late_the_last_rank_comes(odd: int) -> None:
    told = Told()
    for rank in (odd, (odd + 1) % 3):
        told(rank, "all_reduce", None, 3 if rank == odd else 2)
    assert told.supervisor.judge() is None, "two differ, and the third has not said whose side it is on"
    assert told.supervisor.deadline > time.monotonic()
    told((odd + 2) % 3, "all_reduce", None, 2)
    assert told.supervisor.judge().rank == odd


def test_no_patience_where_no_rank_runs() -> None:
    told = Told()
    told(0, "all_reduce", None, 3), told(1, "all_reduce", None, 2)
    told.supervisor.finish(2)
    assert isinstance(told.supervisor.judge(), MismatchError)


def verdict_of(told: Told) -> object:
    """What the supervisor says once it has looked as often as it wants to, within a second."""
    begin = time.monotonic()
    while told.supervisor.judge() is None and time.monotonic() < begin + 1:
        time.sleep(max(0.0, told.supervisor.deadline - time.monotonic()))
    return told.supervisor.judge()


def test_patience_ends_while_a_rank_sleeps() -> None:
    told = Told()
    told(0, "all_reduce", None, 3), told(1, "all_reduce", None, 2)
    begin = time.monotonic()
    assert isinstance(verdict_of(told), MismatchError)
    assert grace_period.SHORT < time.monotonic() - begin < grace_period.LONG


def test_patience_lasts_while_a_rank_stands_in_the_queue_for_a_processor() -> None:
    asked = []
    told = Told(ready=lambda rank: asked.append(rank) or len(asked) < 5)
    told(0, "all_reduce", None, 3), told(1, "all_reduce", None, 2)
    assert isinstance(verdict_of(told), MismatchError)
    assert asked == [2] * 6, "the others wait; and a rank may sleep for an instant"


def test_patience_ends_where_a_rank_only_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace_period, "LONG", 0.2)
    told = Told(ready=lambda rank: True)
    told(0, "all_reduce", None, 3), told(1, "all_reduce", None, 2)
    assert isinstance(verdict_of(told), MismatchError)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_messages_that_do_not_fit_always_the_same_is_told(order: tuple[int, ...]) -> None:
    told = Told()
    for rank in order:
        assert told.supervisor.judge() is None, "others may show the same"
        told(rank, "send", (rank + 1) % 3, 3), told(rank, "recv", (rank - 1) % 3, 2)
    error = told.supervisor.judge()
    assert isinstance(error, MismatchError) and error.rank == 0


def test_a_message_that_does_not_fit_is_told_while_a_rank_sleeps() -> None:
    told = Told()
    told(0, "send", 1, 3), told(1, "recv", 0, 2)
    assert told.supervisor.judge() is None
    assert told.supervisor.deadline > time.monotonic()
    assert isinstance(verdict_of(told), MismatchError)


def reads_too_early() -> None:
    """On every rank alike."""
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    x.sum()
    work.wait()


def test_of_ranks_that_all_do_the_same_wrong_always_the_first_is_told(clusters) -> None:
    for _ in range(8):
        with pytest.raises(RequestError) as found:
            clusters(4, watch=True).run(reads_too_early)
        assert found.value.rank == 0
