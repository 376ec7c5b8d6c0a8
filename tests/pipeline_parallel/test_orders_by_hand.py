"""What a learner writes is what the tables say, and the clock of a pipeline is what the simulation shows."""

from collections.abc import Callable

import pytest

from reference.errors import BadInput
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.answers import orders as orders_by_hand
from reference.pipeline_parallel.answers.clock import bubble_fraction, clock_cycles
from reference.pipeline_parallel.schedule import Action, Schedule
from reference.pipeline_parallel.simulate import Costs, simulate

SIZES = [(1, 1), (1, 4), (2, 1), (3, 5), (4, 2), (4, 8), (5, 5), (8, 3)]  # ranks, micro-batches


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(
    ("by_hand", "of_tables"),
    [
        (orders_by_hand.gpipe_order, orders.gpipe),
        (orders_by_hand.one_f_one_b_order, orders.one_f_one_b),
    ],
)
def test_each_rank_by_itself_finds_its_line(
    by_hand: Callable[[int, int, int], list[Action]], of_tables: Callable[[int, int], Schedule], p: int, m: int
) -> None:
    assert tuple(tuple(by_hand(rank, p, m)) for rank in range(p)) == of_tables(p, m).lines


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 4), (3, 3), (4, 8)])
def test_each_rank_by_itself_finds_its_interleaved_line(p: int, m: int, v: int) -> None:
    lines = tuple(tuple(orders_by_hand.interleaved_order(rank, p, m, v)) for rank in range(p))
    assert lines == orders.interleaved(p, m, v).lines


def test_interleaved_micro_batches_go_in_groups() -> None:
    with pytest.raises(BadInput, match="micro-batches go in groups of 2: take a multiple, not 3"):
        orders_by_hand.interleaved_order(0, 2, 3, 2)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_a_cycle_has_what_runs_at_that_time(p: int, m: int) -> None:
    step = simulate(orders.forward_only(orders.gpipe(p, m), m))
    at_that_time = [[] for _ in range(m + p - 1)]
    for line in step.spans:
        for (_, stage, micro_batch), begin, _ in line:
            at_that_time[int(begin)].append((stage, micro_batch))
    assert clock_cycles(p, m) == at_that_time


@pytest.mark.parametrize("costs", [Costs(1, 1, 1), Costs(2, 3, 1)])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_the_bubble_does_not_depend_on_costs_or_on_when_activations_are_freed(p: int, m: int, costs: Costs) -> None:
    for order in (orders.gpipe, orders.one_f_one_b):
        assert simulate(order(p, m), costs).bubble_rate == pytest.approx(bubble_fraction(p, m, 1), abs=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 3), (3, 3, 4), (8, 16, 2)])
def test_more_stages_on_a_rank_shrink_the_bubble(p: int, m: int, v: int) -> None:
    rate = simulate(orders.interleaved(p, m, v)).bubble_rate
    assert rate == pytest.approx(bubble_fraction(p, m, v), abs=1e-12)
    assert rate < bubble_fraction(p, m, 1)
