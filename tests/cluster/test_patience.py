"""A call's time: what counts is when its ranks could run. The kernel's books are made up here, to the second."""

import os
from pathlib import Path

import pytest

from reference.cluster import patience
from reference.cluster.patience import Books, Patience

THREAD = Path("/proc/1/task/1")
LIMIT = 8.0


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch):
    """Looks at a call that began at 0, with these books at this time; says whether it is over."""
    monkeypatch.setattr(patience.time, "monotonic", lambda: 0.0)
    call = Patience(LIMIT, [1])

    def look(now: float, computed: float, delayed: float, ran: float | None) -> bool:
        ready = {} if ran is None else {THREAD: int(1e9 * ran)}
        monkeypatch.setattr(patience, "books", lambda processes: Books(computed, delayed, ready))
        return call.over(now)

    assert not look(LIMIT / 2, 0.0, 0.0, None)
    look.call = call
    return look


def test_ranks_that_sleep_have_their_limit_by_the_clock(at) -> None:
    assert not at(LIMIT - 1, 0.0, 0.0, None)
    assert at(LIMIT, 0.0, 0.0, None)


def test_ranks_that_compute_have_half_of_it_as_processor_time(at) -> None:
    assert at(LIMIT, 4.1, 0.0, 4.1)


def test_waits_that_have_ended_do_not_count(at) -> None:
    assert not at(LIMIT, 0.5, 3.5, 0.5)
    assert at(LIMIT + 3.6, 0.6, 3.5, None)


def test_a_wait_that_goes_on_stands_in_no_book_and_does_not_count(at) -> None:
    """A rank in the queue since its first half: nothing that it has done says so but its state."""
    now = LIMIT
    while now < 2 * LIMIT:
        assert not at(now, 0.1, 0.0, 0.1)
        now = at.call.look
    assert not at(now, 0.1, 12.0, None)  # it had its turn, and the wait is written down
    assert at(now + LIMIT, 0.1, 12.0, None)


def test_a_rank_that_runs_slowly_is_not_in_the_queue(at) -> None:
    """It is ready at each look, and has run between them."""
    assert not at(LIMIT, 0.1, 0.0, 0.1)
    assert at(at.call.look, 0.12, 0.0, 0.12)


def test_a_machine_that_stays_busy_ends_the_call(at) -> None:
    assert not at(LIMIT, 0.1, 0.0, 0.1)
    assert at(20 * LIMIT + 1, 0.1, 0.0, 0.1) and at.call.busy


def test_waits_of_the_owner_stand_in_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks wait for it while it sends arguments, and nothing of theirs says so."""
    monkeypatch.setattr(patience, "_scheduled", lambda thread: (0, 10**9))
    assert patience.books([]).delayed == 1.0


def test_a_thread_that_ends_meanwhile_leaves_the_others_in_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's thread may end between two reads; without books the clock alone would count."""
    gone = Path(f"/proc/{os.getpid()}/task/0")
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [gone, *listed(folder)])
    found = patience.books([os.getpid()])
    assert found is not None and found.ready
    assert patience.books([2**22 + 1]) is None  # a process that is gone
