"""A step's time on a model: messages hide behind work that lies between a call and the wait for it."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from puzzles.grading.overlap import NAME, Work, microseconds, notes_of
from reference.cluster import Cluster
from reference.trace import Network, Trace

Clusters = Callable[..., Cluster]
LINK = Network.uniform(alpha=0.0, beta=1e6)  # a byte takes a microsecond
WORK = 100e-6  # seconds of a piece of work, when a message takes 80 µs


def at_once() -> list:
    """Work, then a message that is waited for, twice."""
    work = Work()
    for _ in range(2):
        work(WORK)
        dist.all_reduce(torch.ones(10, dtype=torch.float64))
    return work.notes[NAME]


def behind_work() -> list:
    """The first message is in flight during the second piece of work."""
    work, requests = Work(), []
    for _ in range(2):
        work(WORK)
        requests.append(dist.all_reduce(torch.ones(10, dtype=torch.float64), async_op=True))
    for request in requests:
        request.wait()
    return work.notes[NAME]


def after_work() -> list:
    """Both messages leave when all is done."""
    work = Work()
    work(WORK)
    work(WORK)
    requests = [dist.all_reduce(torch.ones(10, dtype=torch.float64), async_op=True) for _ in range(2)]
    for request in requests:
        request.wait()
    return work.notes[NAME]


def one_is_late() -> list:
    """Rank 1 works twice as long."""
    work = Work()
    work(WORK * (1 + dist.get_rank()))
    dist.all_reduce(torch.ones(10, dtype=torch.float64))
    return work.notes[NAME]


@pytest.mark.parametrize(
    ("program", "expected"), [(at_once, 360), (behind_work, 280), (after_work, 360), (one_is_late, 280)]
)
def test_time_on_two_ranks(clusters: Clusters, program: Callable[[], list], expected: float) -> None:
    """An all-reduce of 80 bytes on 2 ranks sends 40 bytes twice."""
    notes, trace = clusters(2).trace(program)
    assert microseconds(trace, dict(enumerate(notes)), LINK) == pytest.approx(expected, rel=1e-9)


def test_without_work_it_is_the_replay(clusters: Clusters) -> None:
    _, trace = clusters(3).trace(after_work)
    assert microseconds(trace, {}, LINK) == pytest.approx(trace.replay(LINK).duration * 1e6, rel=1e-6)


def test_work_alone_takes_its_time() -> None:
    assert microseconds(Trace(2, ((), ())), {0: [(0, 3e-6), (0, 4e-6)], 1: [(5, 2e-6)]}, LINK) == 7.0


@pytest.mark.parametrize("said", [None, 3, [1, 2], [("a", "b")], [(1, 2, 3)]])
def test_what_is_no_note_counts_nothing(said: object) -> None:
    assert notes_of({NAME: said}) == []
