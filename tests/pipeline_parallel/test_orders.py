"""Every order computes a step, with the bubble and the memory that its paper says."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from reference.errors import BadInput
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, naive, one_f_one_b
from reference.pipeline_parallel.schedule import Action, Kind, Schedule
from reference.pipeline_parallel.simulate import Costs, makes, needs, simulate
from reference.pipeline_parallel.unroll import unroll
from reference.pipeline_parallel.validate import ends, validate

from .pipes import ALL, LOOPED, STRAIGHT, Make

ORDERS = STRAIGHT | LOOPED


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ORDERS)
def test_every_order_computes_a_step(name: str) -> None:
    for p in range(1, 9):
        for m in range(1, 17):
            validate(ORDERS[name].make(p, m))


@pytest.mark.parametrize("m", [4, 8, 12])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_bubble_is_that_of_the_formula(p: int, m: int) -> None:
    forward, backward = 3, 5
    costs = Costs(forward, backward - 2, 2)
    work, trip = m * (forward + backward), (p - 1) * (forward + backward)
    assert simulate(naive(p, m), costs).seconds == p * work
    assert simulate(gpipe(p, m), costs).seconds == work + trip
    assert simulate(one_f_one_b(p, m), costs).seconds == work + trip
    for v in (2, 4):
        chunk = Costs(forward / v, (backward - 2) / v, 2 / v)
        assert simulate(interleaved(p, m, v), chunk).seconds == work + trip / v
        assert simulate(breadth_first(p, m, v), chunk).seconds == work + trip / v


@pytest.mark.parametrize(("p", "m"), [(1, 3), (3, 2), (4, 8), (4, 9), (8, 16)])
def test_ranks_hold_the_activations_of_the_formula(p: int, m: int) -> None:
    assert validate(naive(p, m)).activations == (1,) * p
    assert validate(gpipe(p, m)).activations == (m,) * p
    assert validate(one_f_one_b(p, m)).activations == tuple(min(m, p - rank) for rank in range(p))
    for v in (2, 3):
        assert validate(breadth_first(p, m, v)).activations == (m * v,) * p
        if m % p == 0:
            expected = tuple(min(m * v, p * v + p - 1 - 2 * rank) for rank in range(p))
            assert validate(interleaved(p, m, v)).activations == expected


def test_1f1b_is_what_everybody_draws() -> None:
    assert str(one_f_one_b(2, 3)) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2\nF1.0 B1.0 F1.1 B1.1 F1.2 B1.2"


def test_groups_of_micro_batches_pass_one_stage_and_then_the_next() -> None:
    assert str(interleaved(2, 2, 2)).splitlines()[0] == "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1"


@pytest.mark.parametrize("kind", Kind)
def test_actions_are_read_as_they_are_printed(kind: Kind) -> None:
    action = Action(kind, 12, 3)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F", "F1", "F1.", "X1.2", "F1.2 ", "F-1.2", "f1.2"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"such as F0\.3"):
        Action.parse(text)


def changed(schedule: Schedule, rank: int, change: Callable[[tuple[Action, ...]], tuple[Action, ...]]) -> Schedule:
    """The same with another line for a rank."""
    lines = list(schedule.lines)
    lines[rank] = change(lines[rank])
    return Schedule(tuple(lines), schedule.placement, schedule.routes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line[1:], "F0.0 is missing"),
        (lambda line: line[:-1], "backward of stage 0 on micro-batch 2 must be B0.2, or I0.2 and W0.2"),
        (lambda line: (*line, Action(Kind.WEIGHT, 0, 2)), "backward of stage 0 on micro-batch 2 must be"),
        (lambda line: (*line, line[0]), "F0.0 is computed 2 times"),
        (lambda line: (*line, Action(Kind.FORWARD, 0, 3)), "computes F0.3, and no micro-batch takes that way"),
        (lambda line: (*line, Action(Kind.FORWARD, 1, 0)), "stage 1 is on rank 1"),
        (lambda line: line[::-1], "never ends: rank 0 waits in B0.2; rank 1 waits in F1.0"),
    ],
)
def test_what_computes_no_step_is_refused_with_the_reason(change: Callable, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace(".", r"\.")):
        validate(changed(gpipe(2, 3), 0, change))


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ((), "2 ranks and 0 micro-batches make no step"),
        (((0, 1), ()), r"the route of micro-batch 1, \(\), must pass a stage or more, each once"),
        (((0, 1, 0), (0, 1)), r"the route of micro-batch 0, \(0, 1, 0\), must pass a stage or more, each once"),
        (((0, 1), (0, 1, 2)), "micro-batch 1 passes stage 2, which is on no rank"),
    ],
)
def test_routes_that_lead_nowhere_are_refused(routes: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        validate(replace(gpipe(2, 2), routes=routes))


def test_there_is_no_micro_batch_before_the_first() -> None:
    with pytest.raises(BadInput, match=r"computes F0\.-1, and no micro-batch takes that way"):
        validate(changed(gpipe(2, 2), 0, lambda line: (*line, Action(Kind.FORWARD, 0, -1))))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("sizes", [(0, 4), (2, 0), (2, -3)])
def test_an_order_needs_a_rank_and_a_micro_batch(name: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="must be at least 1, not"):
        ORDERS[name].make(*sizes)


@pytest.mark.parametrize("order", [interleaved, breadth_first])
def test_a_rank_has_a_stage_at_least(order: Callable[[int, int, int], Schedule]) -> None:
    with pytest.raises(BadInput, match="v must be at least 1, not 0"):
        order(2, 4, 0)


@pytest.mark.parametrize(
    ("table", "word"),
    [([(2, "F"), (3, "B")], "B"), ([(3, "F0")], "F0"), ([(1, "F1")], "F1"), ([(1, "F I"), (2, "W")], "W")],
)
def test_a_table_takes_no_more_than_there_is(table: list[tuple[int, str]], word: str) -> None:
    with pytest.raises(BadInput, match=f"^{word} has no work left to take$"):
        unroll(table, [[(0, 0), (0, 1)]])


def test_a_weight_gradient_is_the_oldest_of_all_or_of_one_work() -> None:
    work = [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    begun = [(2, "F0 F1"), (2, "I1 I0")]
    assert list(map(str, unroll([*begun, (4, "W")], work)[-4:])) == ["W1.0", "W0.0", "W1.1", "W0.1"]
    assert list(map(str, unroll([*begun, (2, "W0"), (2, "W1")], work)[-4:])) == ["W0.0", "W0.1", "W1.0", "W1.1"]
    with pytest.raises(BadInput, match=r"^W0 has no work left to take$"):
        unroll([*begun, (3, "W0")], work)


def test_costs_are_of_all_stages() -> None:
    with pytest.raises(BadInput, match="costs of 2 stages, and the schedule has 4"):
        simulate(gpipe(4, 2), Costs([1.0, 2.0]))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), [1.0, -2.0]])
def test_costs_are_times(wrong: float | list[float]) -> None:
    with pytest.raises(BadInput, match="a cost is a time, 0 or more, and weight has"):
        Costs(weight=wrong)


def test_some_orders_need_room_for_messages() -> None:
    """Where both neighbours send before they receive, blocking sends wait for each other."""
    assert validate(gpipe(4, 8)).room == 0
    assert validate(one_f_one_b(4, 8)).room == 1
    assert not ends(one_f_one_b(4, 8), room=0) and ends(one_f_one_b(4, 8), room=1)
    assert [validate(breadth_first(4, m, 2)).room for m in (4, 8, 16)] == [1, 2, 4]


@pytest.mark.parametrize("make", [order.make for order in ALL.values()], ids=ALL)
def test_an_action_begins_when_its_rank_is_free_and_what_it_needs_is_there(make: Make) -> None:
    """The loop of `simulate` looks up what `needs` and `makes` say; here they are asked for each action."""
    schedule, costs = make(4, 8), Costs(2, 3, 1, message=0.25)
    spans = simulate(schedule, costs).spans
    assert tuple(tuple(span.action for span in line) for line in spans) == schedule.lines
    ended = {made: (rank, end) for rank, line in enumerate(spans) for action, _, end in line if (made := makes(action))}
    for rank, line in enumerate(spans):
        free = 0.0
        for action, begin, end in line:
            there, arrived = ended.get(needs(schedule, action), (rank, 0.0))
            assert begin == max(free, arrived + (costs.message if there != rank else 0.0)), action
            free = end


def test_messages_take_their_time_once_at_the_start_and_once_at_the_end() -> None:
    quick, slow = (simulate(gpipe(4, 8), Costs(message=message)).seconds for message in (0.0, 0.25))
    assert slow - quick == 2 * 3 * 0.25
