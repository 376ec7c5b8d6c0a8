"""Those who live agree: on one list, whoever dies, hangs or comes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from reference.cluster import Cluster, Gone
from reference.resilience import membership
from reference.resilience.lab.faults import stand_still
from reference.resilience.membership import Membership, Round
from reference.resilience.store import Roll, reach, serve

pytestmark = pytest.mark.alone  # who is gone is told by a clock

LEASE = 3.0


@pytest.fixture
def port() -> Iterator[int]:
    store = serve()
    yield store.port


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(4, timeout=60) as cluster:
        yield cluster


def member(port: int) -> Membership:
    return Membership(partial(reach, "127.0.0.1", port), f"rank {dist.get_rank()}", LEASE, at_first=4)


def first_round(port: int) -> Round:
    return member(port).agree()


def test_all_who_come_agree_on_one_list(four: Cluster, port: int) -> None:
    assert set(four.run(first_round, port)) == {Round(1, tuple(f"rank {rank}" for rank in range(4)))}


def without_the_dead(port: int, how: int) -> tuple[Round, float]:
    mine = member(port)
    mine.agree()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), how)
    began = time.monotonic()
    while not mine.over:
        time.sleep(0.001)
    noticed = time.monotonic() - began
    return mine.agree(), noticed


def test_a_death_is_noticed_at_once_on_one_machine(four: Cluster, port: int, patience: float) -> None:
    results = four.survive(without_the_dead, port, signal.SIGKILL)
    assert results[2] == Gone(-signal.SIGKILL)
    rounds, noticed = zip(*(result for rank, result in enumerate(results) if rank != 2), strict=True)
    assert set(rounds) == {Round(2, ("rank 0", "rank 1", "rank 3"))}
    assert max(noticed) < 0.5 * patience


def returns_later(port: int, missed: Path) -> list[Round]:
    """Rank 1 hangs until the others train without it, which a file says; then they take it back."""
    mine = member(port)
    rounds = [mine.agree()]
    if dist.get_rank() == 1:
        stand_still(lambda: until(missed.exists))
        rounds.append(mine.agree())
    while len(rounds) == 1 or len(rounds[-1].members) < 4:
        until(lambda: mine.over or mine.guests)
        rounds.append(mine.agree())
        if "rank 1" not in rounds[-1].members:
            missed.touch()
    return rounds


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.001)


def test_who_hangs_is_left_behind_and_comes_back(four: Cluster, port: int, tmp_path: Path) -> None:
    rounds = four.survive(returns_later, port, tmp_path / "missed")
    assert any("rank 1" not in agreed.members for of_rank in rounds for agreed in of_rank)
    assert {of_rank[-1].members for of_rank in rounds} == {tuple(f"rank {rank}" for rank in range(4))}
    assert len({of_rank[-1] for of_rank in rounds}) == 1
    assert all(len(agreed.members) >= 3 for agreed in rounds[1]), "who wakes does not take all others for dead"


def test_who_stood_still_does_not_take_all_others_for_dead(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that has run on without this process says nothing of the others."""
    one, other = (Membership(partial(reach, "127.0.0.1", port), name, LEASE) for name in ("one", "other"))
    until(lambda: one._watch.lives("other"))
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 100 * LEASE)
    assert one._watch.lives("other")
    monkeypatch.undo()
    one.close()
    other.close()


def test_who_came_after_the_last_beat_is_not_taken_for_dead(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may be agreed on between two beats: then it has a name that this process has not heard."""
    monkeypatch.setattr(membership, "BEAT", 100.0)  # after the first one, this process hears nobody
    one = Membership(partial(reach, "127.0.0.1", port), "one", LEASE)
    until(lambda: one._watch.known == 1)
    time.sleep(5 * membership.LOOK)
    other = Membership(partial(reach, "127.0.0.1", port), "other", LEASE)
    one._watch.attend(Round(1, ("one", "other")))
    time.sleep(20 * membership.LOOK)
    assert not one.over and one._watch.lives("other")
    one.close()
    other.close()


def leaves(port: int) -> Round:
    mine = member(port)
    mine.agree()
    if dist.get_rank() == 0:
        mine.close()
        return mine.round
    until(lambda: mine.over)
    return mine.agree()


def test_who_leaves_is_missed(four: Cluster, port: int) -> None:
    assert four.survive(leaves, port)[1:] == [Round(2, ("rank 1", "rank 2", "rank 3"))] * 3


def test_a_name_that_was_never_written_hides_no_other(port: int) -> None:
    """Its writer has died between taking a place and writing there."""
    store, roll = reach("127.0.0.1", port, 5.0), Roll("names")
    store.add("names", 1)
    for name in ("a", "b"):
        roll.write(store, name)
    assert sorted(roll.news(store)) == ["a", "b"]
    assert roll.news(store) == []
