"""Rounds of collectives that do not fit: which rank is the odd one out is told when all are in, or none can come."""

import time

import pytest

from reference.cluster.errors import MismatchError
from reference.cluster.watch import supervisor
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


def test_patience_ends_while_a_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE", 0.01)
    told = Told()
    told(0, "all_reduce", None, 3), told(1, "all_reduce", None, 2)
    time.sleep(0.02)
    assert isinstance(told.supervisor.judge(), MismatchError)
