"""What is written out plainly to learn by is the same as what runs and simulates pipelines."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puzzles.catalog.pipeline_parallel.stalled_stage import Scene, halted, needed_by
from reference.errors import BadInput
from reference.pipeline_parallel import orders
from reference.pipeline_parallel.answers.find_stall import find_stall
from reference.pipeline_parallel.answers.held import peak_activations
from reference.pipeline_parallel.answers.throughput import best_micro_batch
from reference.pipeline_parallel.answers.with_fsdp import pipeline_and_fsdp
from reference.pipeline_parallel.lab.programs import COSTS, GATHER, parse, simulate_program
from reference.pipeline_parallel.passes import GATHERED, with_gathering, with_reduction
from reference.pipeline_parallel.schedule import Action, Schedule
from reference.pipeline_parallel.simulate import Costs, simulate
from reference.pipeline_parallel.validate import validate

MAKERS: dict[str, Callable[[int, int, int], Schedule]] = {
    "GPipe": lambda p, m, v: orders.gpipe(p, m),
    "1F1B": lambda p, m, v: orders.one_f_one_b(p, m),
    "interleaved": orders.interleaved,
    "breadth-first": orders.breadth_first,
}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("order", MAKERS)
def test_a_rank_holds_as_much_as_the_formula_says(order: str, p: int) -> None:
    chunks, steps = ((1,), 1) if order in ("GPipe", "1F1B") else ((1, 2, 3), p if order == "interleaved" else 1)
    for m, v in itertools.product(range(steps, 2 * p + 1, steps), chunks):
        held = validate(MAKERS[order](p, m, v)).activations
        assert held == tuple(peak_activations(order, rank, p, m, v) for rank in range(p)), (m, v)


@pytest.mark.parametrize(
    ("order", "m", "said"),
    [
        ("gpipe", 4, "an order is one of GPipe, 1F1B, interleaved, breadth-first, not gpipe"),
        ("interleaved", 3, "micro-batches go in groups of 2: take a multiple, not 3"),
    ],
)
def test_of_other_orders_the_formula_says_nothing(order: str, m: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        peak_activations(order, 0, 2, m, 2)


TIMES = st.dictionaries(st.sampled_from((1, 2, 3, 4, 6, 12)), st.tuples(st.integers(1, 99), st.integers(1, 99)))


@given(TIMES, st.sampled_from((12, 24)), st.integers(1, 6), st.integers(0, 30))
def test_no_size_that_fits_makes_a_shorter_step(
    times: dict[int, tuple[int, int]], samples: int, p: int, memory: int
) -> None:
    forward, backward = ({b: pair[i] for b, pair in times.items()} for i in range(2))
    found = best_micro_batch(samples, p, forward, backward, state=4, activation=1, memory=memory)
    steps = {}
    for b, (there, back) in times.items():
        schedule = orders.one_f_one_b(p, samples // b)
        if 4 + b * max(validate(schedule).activations) <= memory:
            steps[b] = simulate(schedule, Costs(there, back, 0)).seconds
    assert (found is None) == (not steps)
    assert found is None or steps[found] == min(steps.values())


STEPS = (orders.one_f_one_b(4, 5), orders.gpipe(3, 4))


@pytest.mark.parametrize("step", STEPS, ids=("1F1B", "GPipe"))
def test_whoever_hangs_is_found(step: Schedule) -> None:
    for action in itertools.chain(*step.lines):
        scene = Scene(step, "computing", (action.stage,), hangs=str(action))
        assert find_stall(step.lines, *halted(scene)) == ("computing", [action.stage])


@pytest.mark.parametrize("step", STEPS, ids=("1F1B", "GPipe"))
def test_a_message_that_is_lost_is_found(step: Schedule) -> None:
    for action in itertools.chain(*step.lines):
        scene = Scene(step, "", ())
        if needed := needed_by(scene, action):
            lost = Scene(step, "message", (needed.stage, action.stage), lost=str(needed))
            assert find_stall(step.lines, *halted(lost)) == ("message", [needed.stage, action.stage])


@pytest.mark.parametrize(("last", "reason"), [("B1.0", "missing"), ("B1.0 F1.0", "circle")])
def test_a_last_stage_that_has_not_been_forward_waits_for_itself(last: str, reason: str) -> None:
    lines = [[Action.parse(text) for text in line.split()] for line in ("F0.0 B0.0", last)]
    assert find_stall(lines, [1, 0], [False, False]) == (reason, [1])


SIZES = [(p, v, m) for p in (1, 2, 3, 4) for v in (1, 2, 4) for m in (p + 2, 2 * p + 1)]


@pytest.mark.parametrize(("p", "v", "m"), SIZES)
def test_the_program_by_hand_is_what_passes_make_of_breadth_first(p: int, v: int, m: int) -> None:
    for rank, line in enumerate(orders.breadth_first(p, m, v).lines):
        made = list(with_gathering(list(with_reduction(line)), GATHERED))
        assert pipeline_and_fsdp(rank, p, v, m) == made
        assert [parse(str(step)) for step in made] == made


@pytest.mark.parametrize(("p", "v", "m"), SIZES)
def test_gathering_shows_at_the_ends_of_a_step_alone(p: int, v: int, m: int) -> None:
    found = simulate_program([pipeline_and_fsdp(rank, p, v, m) for rank in range(p)], v, m)
    both = COSTS.forward + COSTS.input + COSTS.weight
    assert found.seconds == 2 * GATHER + v * m * both + (p - 1) * (both + 2 * COSTS.message)
    assert (found.whole, found.gradients) == (min(v, 2), 1)


@pytest.mark.parametrize("costs", [COSTS, Costs([1, 2, 1, 3, 1, 2], 1, [0.5, 1, 1, 1, 1, 2])], ids=["alike", "uneven"])
def test_gathering_for_free_is_breadth_first(costs: Costs) -> None:
    programs = [pipeline_and_fsdp(rank, 3, 2, 5) for rank in range(3)]
    plain = simulate(orders.breadth_first(3, 5, 2), costs)
    assert simulate_program(programs, 2, 5, costs, gather=0).simulation.spans == plain.spans


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("F0.0 B0.0+", "rank 0 computes F0.0, and stage 0 is not whole: gather it first"),
        ("G0 G0 F0.0 B0.0+ f0", "rank 0 gathers stage 0, which is whole already"),
        ("G0 F0.0 f0 B0.0+", r"rank 0 computes B0.0\+, and stage 0 is not whole"),
        ("f0", "F0.0 is missing"),
        ("f0 G0 F0.0 B0.0+ f0", "rank 0 frees stage 0, which is not whole"),
        ("G0 F0.0 B0.0+", "rank 0 still has stage 0 whole when the step is over: free it"),
        ("G0 F0.0 B0.0 f0", "rank 0 never sums what B0.0 has found"),
        ("G0 F0.0 I0.0 W0.0+ f0", "I0.0 is half a backward"),
        ("G0 B0.0+ F0.0 f0", "this order never ends"),
        ("g0", "an action is one of"),
        ("G0 F0.0+ B0.0+ f0", r"F0.0 brings no gradients of weights that F0.0\+ could sum"),
        ("G0 F0.0 B0.0+ F0.1 f0", "rank 0 computes F0.1, and no micro-batch takes that way"),
        ("G0 F0.0 B0.0+ f0 G7 f7", "rank 0 has G7 in its program, and no stage 7"),
    ],
)
def test_a_program_that_makes_no_step_is_refused(program: str, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        simulate_program([[parse(step) for step in program.split()]], v=1, m=1)
