"""The automatic scheduler: at least as good as the paper's, within the memory it is given, whatever the costs."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.errors import BadInput
from reference.pipeline_parallel.orders import one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import validate
from reference.zero_bubble.automatic import automatic, kept_for_weights
from reference.zero_bubble.building_blocks import one_f_one_b_v, v_half, v_min
from reference.zero_bubble.lab import published
from reference.zero_bubble.orders import dual_pipe_v, zb_h1, zb_h2, zb_v

PAPER = published.settings()
COSTS = PAPER[0].costs  # of 1.5B with 24 micro-batches
times = st.floats(0.25, 4)


def most_held(line: tuple[Action, ...], weight_share: float) -> float:
    """What a rank holds at most: a forward leaves 1, I frees what W does not need, and W the rest."""
    change = {Kind.FORWARD: 1.0, Kind.INPUT: weight_share - 1, Kind.WEIGHT: -weight_share}
    held = most = 0.0
    for action in line:
        held += change[action.kind]
        most = max(most, held)
    return most


@cache
def found_for(row: int, times_p: int) -> Schedule:
    """The order for a row of the table, with the memory of so many micro-batches for each stage."""
    each = PAPER[row]
    return automatic(each.stages, each.micro_batches, each.costs, times_p * each.stages, each.weight_share)


def longest(schedule: Schedule, costs: Costs) -> float:
    return simulate(schedule, costs).longest


def all_rows(test: Callable[..., None]) -> Callable[..., None]:
    """For ZB-1p and ZB-2p of every row."""
    rows = [pytest.param(row, id=f"{each.model}, m={each.micro_batches}") for row, each in enumerate(PAPER)]
    return pytest.mark.parametrize("row", rows)(pytest.mark.parametrize("times_p", [1, 2])(test))


@pytest.mark.turns(3)
@all_rows
def test_the_bubble_is_no_larger_than_the_papers(row: int, times_p: int) -> None:
    """Tables 3, 4 and 9 of arXiv 2401.10241, printed to four digits."""
    found = simulate(found_for(row, times_p), PAPER[row].costs).bubble_rate
    assert found <= PAPER[row].bubble_rates[f"ZB-{times_p}p"] + 0.5e-4


@all_rows
def test_a_step_is_computed_within_the_memory(row: int, times_p: int) -> None:
    schedule, memory = found_for(row, times_p), times_p * PAPER[row].stages
    validate(schedule)
    assert sum(map(len, schedule.lines)) == 3 * schedule.stages * schedule.micro_batches
    most = max(most_held(line, PAPER[row].weight_share) for line in schedule.lines)
    assert most <= memory + 1e-6  # a sum of some hundred shares


@pytest.mark.parametrize("weight_share", [0.0, 0.4, 1.0])
def test_more_memory_makes_a_smaller_bubble(weight_share: float) -> None:
    p, m = 4, 16
    rates = [simulate(automatic(p, m, COSTS, memory, weight_share), COSTS).bubble_rate for memory in (1, 2, p, 2 * p)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


def test_room_for_one_micro_batch_leaves_no_choice() -> None:
    p, m = 4, 6
    for line in automatic(p, m, COSTS, memory=1).lines:
        assert [(action.kind, action.micro_batch) for action in line] == [(kind, k) for k in range(m) for kind in "FIW"]


def test_one_rank_has_no_bubble() -> None:
    assert simulate(automatic(1, 8, COSTS, memory=1), COSTS).bubble_rate == pytest.approx(0)


@pytest.mark.parametrize("slow", range(4))
def test_it_fits_itself_to_a_slow_stage(slow: int) -> None:
    """A little memory more than 1F1B's is enough for no bubble on the slowest rank, which ZB-H1 has."""
    p, m = 4, 16
    each = [1.5 if rank == slow else 1.0 for rank in range(p)]
    costs = Costs(each, each, each, message=0.1)
    assert longest(automatic(p, m, costs, memory=p + 2), costs) == pytest.approx(m * 4.5)
    assert longest(zb_h1(p, m), costs) > m * 4.5 + 1


@pytest.mark.parametrize(
    ("order", "p", "m", "costs"),
    [
        (zb_h1, 3, 13, Costs(1, 3, 2, message=2)),
        (zb_h1, 3, 14, Costs(3, 0.5, 2)),
        (zb_h2, 4, 14, Costs(3, 1, 1.5)),
    ],
)
def test_an_order_by_hand_is_taken_where_it_beats_the_greedy_ones(
    order: Callable[[int, int], Schedule], p: int, m: int, costs: Costs
) -> None:
    """Found by a search over costs: without it among those that are tried, the step would be longer."""
    memory = {zb_h1: p, zb_h2: 2 * p - 1}[order]
    assert longest(automatic(p, m, costs, memory), costs) == longest(order(p, m), costs)


@settings(max_examples=25)
@given(st.data())
def test_random_costs_are_valid_and_never_worse_than_orders_by_hand(data: st.DataObject) -> None:
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 10))
    each = st.lists(times, min_size=p, max_size=p)
    costs = Costs(*(data.draw(times | each) for _ in range(3)), message=data.draw(st.floats(0, 2)))
    memory, weight_share = data.draw(st.floats(1, 3 * p)), data.draw(st.floats(0, 1))
    schedule = automatic(p, m, costs, memory, weight_share)
    validate(schedule)
    assert max(most_held(line, weight_share) for line in schedule.lines) <= memory + 1e-6
    for order, room in ((one_f_one_b, p), (zb_h1, p), (zb_h2, 2 * p - 1)):
        if memory >= room:
            assert longest(schedule, costs) <= longest(order(p, m), costs) * (1 + 1e-12), order.__name__


def test_w_needs_a_third_of_what_a_block_with_attention_matrices_stores() -> None:
    assert kept_for_weights(2304, 24, 1024) == pytest.approx(32 / (34 + 5 * 24 * 1024 / 2304))
    assert PAPER[0].weight_share == kept_for_weights(2304, 24, 1024), "of the model with 1.5B parameters"


V_ORDERS = (v_min, v_half, one_f_one_b_v, zb_v, dual_pipe_v)


def of_stages(costs: Costs) -> Costs:
    """Of half a rank's layers."""
    return Costs(costs.forward / 2, costs.input / 2, costs.weight / 2, costs.message)


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 32)])
def test_a_v_is_as_short_as_published_with_a_half_and_a_third_of_1f1bs_memory(p: int, m: int) -> None:
    """Qi et al. 2024: rates of about p / 2m and 2p / 3m of F + I + W, where F = I = W. One stage a rank cannot."""
    for memory, published_rate in (((p + 2) // 2, p / (2 * m)), ((p + 4) // 3, 2 * p / (3 * m))):
        schedule = automatic(p, m, Costs(), memory, chunks=2)
        assert max(validate(schedule).activations) <= 2 * memory
        found = simulate(schedule)
        assert (found.longest - found.busy) / found.busy <= published_rate
        assert simulate(automatic(p, m, Costs(), memory)).bubble_rate > 1.25 * published_rate


@pytest.mark.parametrize("row", range(0, len(PAPER), 3))
def test_a_v_with_half_the_memory_waits_less_than_1f1b_with_times_of_real_models(row: int) -> None:
    """1F1B's bubble with half of its memory, and with more of it never more."""
    p, m, costs = PAPER[row].stages, PAPER[row].micro_batches, of_stages(PAPER[row].costs)
    found = [
        automatic(p, m, costs, memory, PAPER[row].weight_share, chunks=2) for memory in (p // 2 + 1, 3 * p // 4, p)
    ]
    rates = [simulate(schedule, costs).bubble_rate for schedule in found]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < PAPER[row].bubble_rates["1F1B"]


@settings(max_examples=15)
@given(st.data())
def test_random_costs_on_a_v_are_valid_and_never_worse_than_orders_by_hand(data: st.DataObject) -> None:
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    each = st.lists(times, min_size=2 * p, max_size=2 * p)
    costs = Costs(*(data.draw(times | each) for _ in range(3)), message=data.draw(st.floats(0, 2)))
    memory, weight_share = data.draw(st.floats(1, 2 * p)), data.draw(st.floats(0, 1))
    schedule = automatic(p, m, costs, memory, weight_share, chunks=2)
    validate(schedule)
    assert schedule.stages == 2 * p and sum(map(len, schedule.lines)) == 3 * 2 * p * m
    assert max(most_held(line, weight_share) for line in schedule.lines) <= 2 * memory + 1e-6
    for order in V_ORDERS:
        if 2 * memory >= max(validate(order(p, m)).activations):
            assert longest(schedule, costs) <= longest(order(p, m), costs) * (1 + 1e-12), order.__name__


def test_a_rank_has_one_stage_or_a_v() -> None:
    with pytest.raises(BadInput, match="a rank has 1 chunk, or 2 that make a V, not 3"):
        automatic(2, 4, COSTS, 4, chunks=3)


@pytest.mark.parametrize(("memory", "weight_share"), [(0.5, 1.0), (4, -0.1), (4, 1.1)])
def test_memory_that_cannot_be_is_refused(memory: float, weight_share: float) -> None:
    with pytest.raises(BadInput, match="activations"):
        automatic(2, 4, COSTS, memory, weight_share)
