"""Dispatch and combine as actions of a pipeline schedule: what is simulated, and what ranks and links that sleep do."""

from collections.abc import Callable, Sequence

import pytest

from reference.cluster import Cluster
from reference.expert_parallel.lab.dispatch_actions import NAMES, costs_of, in_turn, on_link, paired
from reference.pipeline_parallel.lab.sleeping_stages import run_sleeping
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.simulate import Simulation, simulate
from reference.pipeline_parallel.validate import most_activations, validate
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_v

EVEN = dict.fromkeys(NAMES, 1.0)
ORDERS = (dual_pipe_v, dual_pipe, zb_v, zb_h1, one_f_one_b)
Make = Callable[[Schedule], Schedule]


def step(schedule: Schedule, seconds: dict[str, float] = EVEN) -> Simulation:
    return simulate(schedule, costs_of(schedule, seconds))


def of_a_micro_batch(order: Callable[[int, int], Schedule], make: Make, p: int = 4) -> float:
    """What one more adds to a step, where the pipeline is full."""
    few, many = (step(make(order(p, m))).seconds for m in (4 * p, 6 * p))
    return (many - few) / (2 * p)


@pytest.mark.parametrize("make", [in_turn, paired])
@pytest.mark.parametrize("order", ORDERS)
def test_a_schedule_in_parts_is_a_schedule(order: Callable[[int, int], Schedule], make: Make) -> None:
    """Complete, in an order that ends; ranks compute, their links send."""
    for p, m in ((2, 2), (4, 8)):
        schedule = make(order(p, m))
        validate(schedule)
        assert schedule.ranks == 2 * p
        for number, line in enumerate(schedule.lines):
            assert {on_link(action.stage) for action in line} == {number >= p}


def test_both_do_the_same_on_each_rank_and_each_link() -> None:
    one, other = (make(dual_pipe_v(4, 8)) for make in (in_turn, paired))
    assert [sorted(line) for line in one.lines] == [sorted(line) for line in other.lines]
    assert one.lines[:4] != other.lines[:4]


def test_a_pair_of_dual_pipe_hides_all_that_it_sends() -> None:
    """Two stages, of each two parts forward and two in each half of backward, take 12; in turn, 8 messages besides."""
    assert of_a_micro_batch(dual_pipe_v, in_turn) == 12 + 8
    assert of_a_micro_batch(dual_pipe_v, paired) == 12


def test_what_is_sent_shows_where_it_takes_longer_than_what_is_computed() -> None:
    slow = EVEN | {"dispatch": 3.0, "combine": 3.0}
    few, many = (step(paired(dual_pipe_v(4, m)), slow).seconds for m in (16, 24))
    assert (many - few) / 8 == 8 * 3, "the link is never idle"


def test_pairs_harm_an_order_that_is_not_made_for_them() -> None:
    """In 1F1B the backward beside a forward is the one that the other ranks wait for."""
    assert of_a_micro_batch(one_f_one_b, in_turn) == 6 + 4
    assert of_a_micro_batch(one_f_one_b, paired) == 15
    assert of_a_micro_batch(zb_h1, paired) > of_a_micro_batch(zb_h1, in_turn)
    assert of_a_micro_batch(dual_pipe_v, paired) < of_a_micro_batch(zb_v, paired) < of_a_micro_batch(zb_v, in_turn)


def test_pairs_hold_no_more_activations() -> None:
    """A rank holds a block from attention's forward to the end of its backward."""

    def held(schedule: Schedule) -> Sequence[int]:
        blocks = [tuple(action for action in line if action.stage % 4 == 0) for line in schedule.lines[:4]]
        return [most_activations(line) for line in blocks]

    assert held(in_turn(dual_pipe_v(4, 8))) == list(validate(dual_pipe_v(4, 8)).activations)
    assert max(held(paired(dual_pipe_v(4, 8)))) <= max(held(in_turn(dual_pipe_v(4, 8)))) + 1


def slept(cluster: Cluster, schedule: Schedule, unit: float) -> tuple[float, float]:
    """Seconds of a step on paper, and of the shortest of some that ranks and links slept through.

    Where other processes want the cores, sleepers wake up late: a step takes too long, never too short.
    """
    costs = costs_of(schedule, dict.fromkeys(NAMES, unit))
    plan, best = simulate(schedule, costs).seconds, float("inf")
    for _ in range(10):
        best = min(best, run_sleeping(cluster, schedule, costs).step.seconds)
        if best < 1.1 * plan:
            break
    return plan, best


@pytest.mark.alone
def test_ranks_and_links_that_sleep_take_what_was_simulated(clusters: Callable[..., Cluster]) -> None:
    """Two ranks and their links, six micro-batches: 123 and 93 units."""
    (turn, slow), (together, quick) = (
        slept(clusters(4), make(dual_pipe_v(2, 6)), unit=0.03) for make in (in_turn, paired)
    )
    assert turn / together == pytest.approx(123 / 93)
    assert slow >= turn and quick >= together
    assert slow / quick > 1.1
