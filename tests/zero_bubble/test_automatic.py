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
from reference.zero_bubble import published
from reference.zero_bubble.automatic import automatic, kept_for_weights
from reference.zero_bubble.orders import zb_h1, zb_h2

PAPER = published.settings()
COSTS = PAPER[0].costs  # of 1.5B with 24 micro-batches
times = st.floats(0.25, 4)


def most_held(line: tuple[Action, ...], keeps: float) -> float:
    """What a rank holds at most: a forward leaves 1, I frees what W does not need, and W the rest."""
    change = {Kind.FORWARD: 1.0, Kind.INPUT: keeps - 1, Kind.WEIGHT: -keeps}
    held = most = 0.0
    for action in line:
        held += change[action.kind]
        most = max(most, held)
    return most


@cache
def found_for(row: int, times_p: int) -> Schedule:
    """The order for a row of the table, with the memory of so many micro-batches for each stage."""
    each = PAPER[row]
    return automatic(each.stages, each.micro_batches, each.costs, times_p * each.stages, each.keeps)


def longest(schedule: Schedule, costs: Costs) -> float:
    return simulate(schedule, costs).longest


def all_rows(test: Callable[..., None]) -> Callable[..., None]:
    """For ZB-1p and ZB-2p of every row."""
    rows = [pytest.param(row, id=f"{each.model}, m={each.micro_batches}") for row, each in enumerate(PAPER)]
    return pytest.mark.parametrize("row", rows)(pytest.mark.parametrize("times_p", [1, 2])(test))


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
    most = max(most_held(line, PAPER[row].keeps) for line in schedule.lines)
    assert most <= memory + 1e-6  # a sum of some hundred shares


@pytest.mark.parametrize("keeps", [0.0, 0.4, 1.0])
def test_more_memory_makes_a_smaller_bubble(keeps: float) -> None:
    p, m = 4, 16
    rates = [simulate(automatic(p, m, COSTS, memory, keeps), COSTS).bubble_rate for memory in (1, 2, p, 2 * p)]
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
    memory, keeps = data.draw(st.floats(1, 3 * p)), data.draw(st.floats(0, 1))
    schedule = automatic(p, m, costs, memory, keeps)
    validate(schedule)
    assert max(most_held(line, keeps) for line in schedule.lines) <= memory + 1e-6
    for order, room in ((one_f_one_b, p), (zb_h1, p), (zb_h2, 2 * p - 1)):
        if memory >= room:
            assert longest(schedule, costs) <= longest(order(p, m), costs) * (1 + 1e-12), order.__name__


def test_w_needs_a_third_of_what_a_block_with_attention_matrices_stores() -> None:
    assert kept_for_weights(2304, 24, 1024) == pytest.approx(32 / (34 + 5 * 24 * 1024 / 2304))
    assert PAPER[0].keeps == kept_for_weights(2304, 24, 1024), "of the model with 1.5B parameters"


@pytest.mark.parametrize(("memory", "keeps"), [(0.5, 1.0), (4, -0.1), (4, 1.1)])
def test_memory_that_cannot_be_is_refused(memory: float, keeps: float) -> None:
    with pytest.raises(BadInput, match="activations"):
        automatic(2, 4, COSTS, memory, keeps)
