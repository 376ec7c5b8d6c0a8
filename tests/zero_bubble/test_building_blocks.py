"""V-Half, V-Min and 1F1B-V: as little memory as published, and a bubble that is no larger."""

from collections.abc import Callable
from itertools import pairwise
from math import ceil

import pytest

from reference.errors import BadInput
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.building_blocks import (
    INTERVAL,
    SLOTS,
    Block,
    half_block,
    min_block,
    of_block,
    one_f_one_b_v,
    v_half,
    v_min,
    whole_block,
)

Make = Callable[[int, int], Schedule]
HALF = Costs(0.5, 0.5, 0.5)  # of a stage, where those of a rank take 1
BLOCKS = {half_block: Kind.INPUT, min_block: Kind.INPUT, whole_block: Kind.BACKWARD}


def bubble(schedule: Schedule) -> float:
    """The time that a rank waits, in forwards of all its layers."""
    return simulate(schedule, HALF).longest - 3 * schedule.micro_batches


def held(schedule: Schedule) -> float:
    """What a rank holds at most, in micro-batches."""
    return max(validate(schedule).activations) / 2


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("p", range(1, 17))
def test_a_building_block_repeats_without_a_collision(block: Block, p: int) -> None:
    for r in range(p):
        slots = block(p, r)
        width = SLOTS[BLOCKS[block]]
        taken = [slots[0], slots[1], *(slot + at for slot in slots[2:] for at in range(width))]
        assert len({slot % INTERVAL for slot in taken}) == len(taken), r


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("p", range(1, 17))
def test_a_building_block_is_a_way_through_a_v(block: Block, p: int) -> None:
    """Down, up, and back the same way: no pass begins before the one before it has ended."""
    every, width = [block(p, r) for r in range(p)], SLOTS[BLOCKS[block]]
    forward = [slots[0] for slots in every] + [slots[1] for slots in reversed(every)]
    backward = [slots[2] for slots in every] + [slots[3] for slots in reversed(every)]
    assert all(b >= a + 1 for a, b in pairwise([*forward, backward[0]]))
    assert all(b >= a + width for a, b in pairwise(backward))


@pytest.mark.parametrize(
    ("make", "memory"),
    [(v_half, lambda p: p // 2 + 1), (v_min, lambda p: (p + 1) // 3 + 1), (one_f_one_b_v, lambda p: 2 * p // 3 + 1)],
)
def test_all_ranks_hold_what_the_paper_says(make: Make, memory: Callable[[int], int]) -> None:
    """V-Half (p+2)//2 and V-Min (p+4)//3 micro-batches, as the authors publish them."""
    for p in range(2, 13):
        for m in (ceil(1.5 * p), 2 * p, 3 * p):
            assert validate(make(p, m)).activations == (2 * memory(p),) * p, (p, m)


def test_the_bubble_is_that_of_the_formula_and_below_the_published_one() -> None:
    """Published for F = I = W, as a share of the step: about p / 2m for V-Half, and 2p / 3m for V-Min."""
    for p in range(2, 17):
        for m in (ceil(1.5 * p), 2 * p, 4 * p):
            half, least = bubble(v_half(p, m)), bubble(v_min(p, m))
            assert half == max(0, 3 * ceil(p / 2) - 3.5), (p, m)
            assert least == max(0, 2 * p - 2.5 - {0: 1, 1: 0, 2: 0.5}[p % 3]), (p, m)
            assert half / (3 * m) <= p / (2 * m) and least / (3 * m) <= 2 * p / (3 * m)


def test_1f1b_v_waits_less_than_1f1b_and_does_not_split_backward() -> None:
    for p in range(2, 13):
        for m in (ceil(1.5 * p), 2 * p, 4 * p):
            order = one_f_one_b_v(p, m)
            assert bubble(order) <= 2.25 * p, (p, m)
            assert bubble(order) < 3 * (p - 1) == simulate(one_f_one_b(p, m)).longest - 3 * m
            assert {action.kind for line in order.lines for action in line} == {Kind.FORWARD, Kind.BACKWARD}


@pytest.mark.parametrize("make", [v_half, v_min, one_f_one_b_v])
def test_the_bubble_does_not_grow_with_micro_batches(make: Make) -> None:
    for p in (3, 4, 8):
        assert bubble(make(p, 2 * p)) == bubble(make(p, 5 * p)), p


def test_v_half_waits_no_more_in_the_middle_as_long_as_w_fills_what_differs() -> None:
    """The paper's condition: W + 2I >= 2F and W + 2F >= 2I, which 1.5B meets; V-Min pays in every micro-batch."""
    costs = Costs(18.5 / 2, 18.1 / 2, 9.3 / 2)  # milliseconds, of a stage of half a rank's layers

    def waits(make: Make, m: int) -> float:
        return simulate(make(8, m), costs).longest - m * 2 * (costs.forward + costs.input + costs.weight)

    assert waits(v_half, 64) == pytest.approx(waits(v_half, 32))
    assert waits(v_min, 64) > waits(v_min, 32) + 100


@pytest.mark.parametrize("block", BLOCKS)
def test_a_longer_interval_holds_less(block: Block) -> None:
    most = [held(of_block(8, 12, block, BLOCKS[block], n * INTERVAL)) for n in (1, 2, 3, 16)]
    assert most == sorted(most, reverse=True) and most[-1] == 1


def test_more_room_makes_a_shorter_step() -> None:
    small, large = (of_block(8, 16, half_block, Kind.INPUT, room=room) for room in (0, 16))
    assert (held(small), held(large)) == (5, 8)
    assert bubble(large) < bubble(small)


@pytest.mark.parametrize("make", [v_half, v_min, one_f_one_b_v])
def test_there_is_a_rank_and_a_micro_batch(make: Make) -> None:
    for p, m in ((0, 4), (2, 0)):
        with pytest.raises(BadInput, match="must be at least 1, not 0"):
            make(p, m)
