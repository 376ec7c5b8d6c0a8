"""The rank that others wait for is named, and not one that has waited for it."""

import time
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.resilience.stragglers_named import Played, stragglers
from reference.trace import Event, Op, Trace

Clusters = Callable[..., Cluster]
SENDS = 1 / 64  # seconds of each call, after all have come


def trace_of(calls: Sequence[tuple[tuple[int, ...], dict[int, float]]], ranks: int) -> Trace:
    """Ranks that work and then meet: for each call its group, and the work before it."""
    now, events = [0.0] * ranks, [[] for _ in range(ranks)]
    for line, (group, work) in enumerate(calls, start=1):
        came = {rank: now[rank] + work[rank] for rank in group}
        end = max(came.values()) + SENDS
        for rank in group:
            tick = 2 * len(events[rank])
            events[rank].append(
                Event(
                    rank,
                    Op.ALL_REDUCE,
                    group,
                    None,
                    0,
                    (1,),
                    "float32",
                    4,
                    (),
                    "sum",
                    "train.py",
                    line,
                    tick,
                    tick + 1,
                    came[rank],
                    end,
                    str(group),
                )
            )
            now[rank] = end
    return Trace(ranks, tuple(map(tuple, events)), frozenset(range(ranks)))


ALL = (0, 1, 2)


def test_one_that_is_late_at_one_call() -> None:
    trace = trace_of([(ALL, {0: 1, 1: 1, 2: 1}), (ALL, {0: 1, 1: 1.5, 2: 1}), (ALL, {0: 1, 1: 1, 2: 1})], 3)
    (found,) = stragglers(trace)
    assert (found.rank, found.excess, found.gain, found.waited) == (1, 0.5, 0.5, 1.0)
    assert (found.at.line, found.at.rank) == (2, 1)
    assert "rank 1" in str(found) and "train.py:2" in str(found)


def test_playing_what_was_measured_gives_what_was_measured() -> None:
    trace = trace_of([(ALL, {0: 1, 1: 2, 2: 3}), ((0, 1), {0: 1, 1: 0.25}), (ALL, {0: 1, 1: 1.5, 2: 1})], 3)
    assert Played(trace).duration == pytest.approx(trace.duration)


def test_a_neighbour_that_waited_is_not_to_blame() -> None:
    """Rank 1 is slow within its pair; rank 0 comes to the sum over all as late as it does."""
    world, pairs = (0, 1, 2, 3), [((0, 1), {0: 1, 1: 1.5}), ((2, 3), {2: 1, 3: 1})]
    trace = trace_of([*pairs, (world, dict.fromkeys(world, 0.25))], 4)
    (found,) = stragglers(trace)
    assert found.rank == 1 and found.gain == pytest.approx(0.5)


def test_a_delay_that_hides_behind_another_gains_nothing() -> None:
    """Two are equally slow: if one of them were not, the other would be all the same."""
    work = {0: 1, 1: 2, 2: 1, 3: 2, 4: 1}
    assert stragglers(trace_of([(tuple(work), work)], 5)) == []


def test_of_two_the_gain_is_what_one_alone_would_bring() -> None:
    work = {0: 1, 1: 2, 2: 1, 3: 1.5, 4: 1}
    (found,) = stragglers(trace_of([(tuple(work), work)], 5))
    assert (found.rank, found.excess, found.gain) == (1, 1.0, pytest.approx(0.5))


def test_what_is_lost_at_several_calls_adds_up() -> None:
    calls = [(ALL, {0: 1, 1: 1, 2: 1.25 if step % 2 else 1}) for step in range(8)]
    (found,) = stragglers(trace_of(calls, 3))
    assert (found.rank, found.gain, found.excess) == (2, pytest.approx(1.0), pytest.approx(1.0))


def test_where_all_are_alike_none_is_named() -> None:
    assert stragglers(trace_of([(ALL, {0: 1, 1: 1.01, 2: 1})] * 5, 3)) == []


def test_a_rank_that_is_stuck_is_no_straggler() -> None:
    trace = trace_of([(ALL, {0: 1, 1: 1, 2: 1})], 3)
    with pytest.raises(BadInput, match="forever"):
        stragglers(Trace(3, (*trace.events[:2], ())))


def sleepy(culprit: int, seconds: float, times: int) -> None:
    for _ in range(times):
        time.sleep(0.02 + seconds * (dist.get_rank() == culprit))
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("culprit", range(4))
def test_a_rank_that_sleeps_is_named_on_real_ranks(clusters: Clusters, culprit: int) -> None:
    seconds, times = 0.1, 5
    _, trace = clusters(4).trace(sleepy, culprit, seconds, times)
    found = stragglers(trace)[0]
    assert found.rank == culprit and found.at.file == __file__
    assert 0.5 * seconds * times < found.gain <= trace.duration
