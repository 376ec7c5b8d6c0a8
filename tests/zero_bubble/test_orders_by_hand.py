"""Orders written out are those of the tables, and a greedy hand puts W where the papers put it."""

import pytest

from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.answers.orders import place_weight_gradients
from reference.zero_bubble.orders import zb_h1, zb_h2
from reference.zero_bubble.plain import zb_h1_order

SHAPES = [(1, 3), (2, 4), (3, 5), (4, 8), (4, 12), (8, 16)]  # ranks, and micro-batches
COSTS = [(1, 1, 1), (2, 2, 1), (2, 3, 2)]  # of F, I and W; W takes no longer than the others


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 16])
def test_zb_h1_by_hand_is_that_of_the_table(p: int, m: int) -> None:
    assert tuple(tuple(zb_h1_order(rank, p, m)) for rank in range(p)) == zb_h1(p, m).lines


def without_weight_gradients(schedule: Schedule) -> list[list[Action]]:
    """Its F and I, a B being an I."""
    kinds = {Kind.FORWARD: Kind.FORWARD, Kind.INPUT: Kind.INPUT, Kind.BACKWARD: Kind.INPUT}
    return [[each._replace(kind=kinds[each.kind]) for each in line if each.kind in kinds] for line in schedule.lines]


def bubble(lines: list[list[Action]], m: int, costs: tuple[int, int, int], limit: int) -> float:
    """Of a step that is proved, in the memory that there is."""
    schedule = Schedule.straight(lines, range(len(lines)), m)
    assert max(validate(schedule).activations) <= limit
    simulation = simulate(schedule, Costs(*costs))
    return simulation.longest - simulation.busy


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("costs", COSTS)
def test_in_the_memory_of_1f1b_its_bubble_becomes_that_of_zb_h1(p: int, m: int, costs: tuple[int, int, int]) -> None:
    forward, of_input, of_weight = costs
    lines = place_weight_gradients(without_weight_gradients(one_f_one_b(p, m)), *costs, p)
    assert bubble(lines, m, costs, p) == (p - 1) * (forward + of_input - of_weight)


@pytest.mark.parametrize(("p", "m"), [shape for shape in SHAPES if shape[1] >= 2 * shape[0] - 1])
@pytest.mark.parametrize("costs", COSTS)
def test_in_twice_the_memory_it_becomes_that_of_zb_h2(p: int, m: int, costs: tuple[int, int, int]) -> None:
    forward, of_input, of_weight = costs
    lines = place_weight_gradients(without_weight_gradients(zb_h2(p, m)), *costs, 2 * p - 1)
    assert bubble(lines, m, costs, 2 * p - 1) == (p - 1) * (forward + of_input - 2 * of_weight)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_less_memory_than_f_and_i_need_is_not_given_up(limit: int) -> None:
    lines = place_weight_gradients(without_weight_gradients(one_f_one_b(4, 8)), 1, 1, 1, limit)
    assert max(validate(Schedule.straight(lines, range(4), 8)).activations) == 4


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_each_activation_more_fills_the_bubble_by_one_w(more: int) -> None:
    """Where F and I take twice as long as W, there is a gap for a second one on every rank."""
    lines = place_weight_gradients(without_weight_gradients(one_f_one_b(4, 8)), 2, 2, 1, 4 + more)
    assert bubble(lines, 8, (2, 2, 1), 4 + more) == 9 - more
