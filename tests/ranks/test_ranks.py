"""First programs of many processes, against their promises: what each rank gets, in how many steps, in which order."""

import time

import pytest
import torch
import torch.distributed as dist

from reference.cluster import RankError
from reference.ranks import (
    Moment,
    deliver,
    hand_over,
    happened_before,
    look_both_ways,
    one_way,
    ping_pong,
    ring_shift,
    swap,
    take_turns,
)
from reference.ranks.lab.mistakes import MISTAKES

SIZES = (1, 2, 3, 4, 5)


def mine() -> torch.Tensor:
    """Three numbers that say whose they are."""
    return 10.0 * dist.get_rank() + torch.arange(3)


def of(rank: int) -> list[float]:
    return [10.0 * rank + i for i in range(3)]


@pytest.mark.parametrize("n", SIZES)
def test_hand_over_changes_the_target_alone(clusters, n):
    def program():
        x = mine()
        hand_over(x, 0, dist.get_world_size() - 1, dist.group.WORLD)
        return x

    results, trace = clusters(n).trace(program)
    assert [x.tolist() for x in results] == [of(rank) for rank in range(n - 1)] + [of(0)]
    assert (trace.steps, sum(trace.bytes_sent)) == ((1, 12) if n > 1 else (0, 0))


@pytest.mark.parametrize("n", SIZES)
def test_swap_and_shift_take_one_step(clusters, n):
    def program(partner):
        swapped = swap(mine(), partner[dist.get_rank()], dist.group.WORLD)
        return swapped, ring_shift(mine(), dist.group.WORLD)

    partner = [n - 1 - rank for rank in range(n)]
    results, trace = clusters(n).trace(program, partner)
    assert [swapped.tolist() for swapped, _ in results] == [of(rank) for rank in partner]
    assert [shifted.tolist() for _, shifted in results] == [of((rank - 1) % n) for rank in range(n)]
    assert trace.steps == 2 * (n > 1), "one each"


@pytest.mark.parametrize("n", SIZES)
def test_neighbours_see_each_other_in_one_step(clusters, n):
    def program():
        return look_both_ways(1 + mine(), dist.group.WORLD)

    results, trace = clusters(n).trace(program)
    line = [[0.0] * 3, *([1 + value for value in of(rank)] for rank in range(n)), [0.0] * 3]
    assert [(left.tolist(), right.tolist()) for left, right in results] == [(line[r], line[r + 2]) for r in range(n)]
    assert trace.steps == min(1, n - 1)


@pytest.mark.parametrize("shape", [(), (5,), (0, 2), (2, 3, 4), (1, 2, 1, 3)])
def test_a_parcel_arrives_in_its_shape(clusters, shape):
    def program():
        x = torch.full(shape, 7.0) if dist.get_rank() == 2 else None
        return deliver(x, 2, 0, dist.group.WORLD)

    results, trace = clusters(3).trace(program)
    assert torch.equal(results[0], torch.full(shape, 7.0))
    assert results[1:] == [None, None]
    assert trace.bytes_sent == [0, 0, 40 + results[0].nbytes]


def five_dimensions():
    deliver(torch.zeros(1, 1, 1, 1, 1) if dist.get_rank() == 0 else None, 0, 1, dist.group.WORLD)


def test_a_parcel_of_more_dimensions_than_its_label_has_room_for_is_refused(clusters):
    with pytest.raises(RankError, match="a label has room for 4 dimensions, not for 5"):
        clusters(2).run(five_dimensions)


def test_a_group_counts_its_own_ranks(clusters):
    def program():
        group = dist.new_group([1, 3])
        return swap(mine(), 1 - dist.get_rank(group), group).tolist() if dist.get_rank() in (1, 3) else None

    assert clusters(4).run(program) == [None, of(3), None, of(1)]


def test_ping_pong_finds_a_latency_and_a_bandwidth(clusters):
    def program():
        if dist.get_rank() < 2:  # the others do nothing
            one_way(8, 20, time.perf_counter, dist.group.WORLD)
        return ping_pong(8, 4_000_000, 20, time.perf_counter, dist.group.WORLD)

    (alpha, beta), *others = clusters(3).run(program)
    assert others == [None, None]
    assert 1e-7 < alpha < 1e-1
    assert 1e6 < beta < 1e12


def turns(take, clusters, n: int) -> list[bool]:
    """For each rank but the last: must it speak before the next one?"""

    def program():
        spoke = []
        take(lambda: spoke.append(dist.group.WORLD.recorder.tick), dist.group.WORLD)
        return spoke

    spoke, trace = clusters(n).trace(program)
    moments = [Moment(rank, ticks[0]) for rank, ticks in enumerate(spoke)]
    assert not any(happened_before(trace, moments[r + 1], moments[r]) for r in range(n - 1))
    return [happened_before(trace, moments[r], moments[r + 1]) for r in range(n - 1)]


@pytest.mark.parametrize("n", SIZES)
def test_a_token_orders_the_ranks(clusters, n):
    assert turns(take_turns, clusters, n) == [True] * (n - 1)


def test_a_barrier_orders_what_is_before_it_and_what_is_after_it(clusters):
    def in_turn(speak, group):
        for turn in range(dist.get_world_size(group)):
            if turn == dist.get_rank(group):
                speak()
            dist.barrier(group)

    assert turns(in_turn, clusters, 5) == [True] * 4


def test_sleep_orders_nothing(clusters):
    def sleepy(speak, group):
        time.sleep(0.01 * dist.get_rank(group))
        speak()

    assert turns(sleepy, clusters, 3) == [False, False]


def test_news_travels_through_others_and_never_backward(clusters):
    def program():
        token = torch.zeros(1)
        if dist.get_rank() > 0:
            dist.recv(token, src=dist.get_rank() - 1)
        if dist.get_rank() < 2:
            dist.send(token, dst=dist.get_rank() + 1)

    _, trace = clusters(3).trace(program)
    begin, end = Moment(0, 0), Moment(2, 2)
    assert happened_before(trace, begin, end)
    assert not happened_before(trace, end, begin)
    assert not happened_before(trace, begin, Moment(2, 0)), "before it has received"
    assert not happened_before(trace, Moment(0, 1), end), "after it has sent"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_watch_names_every_mistake_of_the_field_guide(clusters, mistake):
    with pytest.raises(RankError) as error:
        clusters(2, watch=True).run(mistake)
    assert error.value.file.endswith("mistakes.py")
    assert mistake.__doc__
