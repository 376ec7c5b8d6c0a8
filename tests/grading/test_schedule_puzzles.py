"""What a verdict says of orders: those that make no step, expensive ones, and those that can't be run."""

import functools
from pathlib import Path

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.checking import check as check_of
from puzzles.grading.course import Course
from puzzles.grading.drives.pipeline_parallel import in_order
from puzzles.grading.engine import grade
from puzzles.grading.my_solution import your_schedule
from puzzles.grading.puzzle import Budget, Case, Measure, Puzzle, cases
from puzzles.grading.schedules import Pipe, one_process, orders_of
from puzzles.grading.verdict import Stage, Verdict
from puzzles.grading.verdict_report import draw, html
from reference.errors import BadInput
from reference.pipeline_parallel.orders import gpipe
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.simulate import Costs, Simulation
from reference.zero_bubble.orders import zb_v


def order(rank: int, p: int, m: int) -> list[Action]:
    """For puzzles of these tests."""
    return []


def rank_p_and_m(case: Case, rank: int) -> dict[str, int]:
    return {"rank": rank, "p": case.n, "m": case.m}


PUZZLE = functools.partial(
    Puzzle,
    name="tests.order",
    title="Order",
    statement="Order.",
    function=order,
    given=(Action, Kind),
    cases=cases(worlds=(3,), m=(4,)),
    inputs=rank_p_and_m,
    drive=in_order,
)


def one_stage_a_rank(case: Case) -> Pipe:
    return Pipe.straight(range(case.n), case.m)


def check(body: str, **changes: object) -> Verdict:
    """Grade a body of `order`; rank r has stage r where nothing else is said."""
    puzzle = PUZZLE(**({"pipe": one_stage_a_rank} | changes))
    return grade(puzzle, text.with_body(puzzle, body))


FORWARD = "[Action(Kind.FORWARD, rank, k) for k in range(m)]"
BACKWARD = "[Action(Kind.BACKWARD, rank, k) for k in range(m)]"
GPIPE = f"return {FORWARD} + {BACKWARD}"


def test_a_schedule_is_proved_simulated_and_run() -> None:
    verdict = check(GPIPE)
    assert verdict.passed, str(verdict)
    assert verdict.compared == 3 * 4 * 2 + 3 * 9 + 1  # actions; three stages' gradients, and the loss
    assert isinstance(verdict.step, Simulation)
    assert verdict.step.longest == 4 * 3 + 2 * 3
    assert any(verdict.trace.events), "the ranks have sent activations and gradients"


def test_the_card_shows_the_chart_of_the_schedule() -> None:
    verdict = check(GPIPE)
    assert draw(verdict).startswith(b"\x89PNG")
    assert "what each rank computes when" in html(verdict)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("pass", "the order of rank 0 must be a list of actions, not None"),
        ("return rank", "the order of rank 0 must be a list of actions, not int 0"),
        ("yield Action(Kind.FORWARD, rank, 0)", "the order of rank 0 must be a list of actions, not a generator"),
        ("return [rank]", "the order of rank 0 must be a list of actions, and there is 0 in it"),
        ("return [(Kind.FORWARD, rank, 0)]", "there is a tuple in it: write Action(kind, stage, micro_batch)"),
        ("return [Action('X', rank, 0)]", "an action is one of F, B, I and W, a stage and a micro-batch"),
        ("return [Action(Kind.FORWARD, rank, -1)]", "such as F0.3, not 'F0.-1'"),
        ("return []", "F0.0 is missing"),
        (f"return {FORWARD}[1:] + {BACKWARD}", "F0.0 is missing"),
        (f"return {FORWARD}", "nothing goes backward"),
        (f"return {FORWARD} + {BACKWARD}[1:]", "backward of stage 0 on micro-batch 0 must be B0.0"),
        (f"return {FORWARD} + {BACKWARD} * 2", "B0.0 is computed 2 times"),
        ("return [Action(Kind.FORWARD, k, rank) for k in range(m)]", "rank 0 computes F1.0, and stage 1 is on rank 1"),
        (f"return {BACKWARD} + {FORWARD}", "this order never ends: rank 0 waits in B0.0"),
        ("return [Action(Kind.FORWARD, rank, k) for k in range(m + 1)]", "F0.4, and no micro-batch takes that way"),
    ],
)
def test_an_order_that_makes_no_step_is_told_why(body: str, reason: str) -> None:
    verdict = check(body)
    assert verdict.stage is Stage.VALUES
    assert reason in verdict.reason, verdict.reason
    assert len(verdict.reason.splitlines()) <= 9
    assert verdict.step is None


def test_the_lines_of_a_schedule_that_is_none_are_shown() -> None:
    verdict = check(f"return {BACKWARD} + {FORWARD}")
    assert "rank 1: B1.0 B1.1 B1.2 B1.3 F1.0" in verdict.reason


BUDGETS = tuple(
    Budget(measure, target=lambda case, most=most: most, why="a reason")
    for measure, most in (
        (Measure.BUBBLE, 6),
        (Measure.ACTIVATIONS, 3),
        (Measure.ALL_ACTIVATIONS, 6),
        (Measure.ROOM, 0),
    )
)
ONE_AT_A_TIME = "return [Action(kind, rank, k) for k in range(m) for kind in (Kind.FORWARD, Kind.BACKWARD)]"
CROSSED = f"return ({FORWARD} + {BACKWARD}) if rank else ({FORWARD}[::-1] + {BACKWARD})"


@pytest.mark.parametrize(
    ("body", "budget", "reason"),
    [
        (ONE_AT_A_TIME, BUDGETS[0], "right, but the bubble is 24 units of time where 6 must do"),
        (GPIPE, BUDGETS[1], "right, but a rank holds 4 activations where 3 must do"),
        (GPIPE, BUDGETS[2], "right, but all ranks together hold 12 activations where 6 must do"),
        (CROSSED, BUDGETS[3], "right, but where sends block, a channel must have room for 3 messages where 0 must do"),
    ],
)
def test_a_dear_order_is_told_what_it_costs(body: str, budget: Budget, reason: str) -> None:
    verdict = check(body, budgets=(budget,))
    assert verdict.stage is Stage.BUDGETS
    assert verdict.reason.startswith(reason), verdict.reason
    assert verdict.step is not None


def test_one_message_is_one() -> None:
    one_too_many = f"return ({FORWARD} + {BACKWARD}) if rank else {FORWARD}[:2][::-1] + {FORWARD}[2:] + {BACKWARD}"
    assert "must have room for 1 message where 0 must do" in check(one_too_many, budgets=(BUDGETS[3],)).reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("yield Gather(rank)", "the program of rank 0 must be a list of steps, not a generator"),
        ("pass", "the program of rank 0 must be a list of steps, not None"),
        ("return [(Kind.FORWARD, rank, 0)]", "the program of rank 0 must be a list of steps, and a tuple is none"),
    ],
)
def test_what_is_no_program_is_called_alike_on_every_rank(body: str, reason: str) -> None:
    puzzle = catalog.find("pipeline_parallel.pipeline_and_fsdp")
    verdict = grade(puzzle, text.with_body(puzzle, body))
    assert reason in verdict.reason
    assert "on every rank" not in verdict.reason


def test_costs_are_those_of_the_pipe() -> None:
    slow = lambda case: Pipe.straight(range(case.n), case.m, Costs(2, 3, 4))  # noqa: E731
    assert check(GPIPE, pipe=slow).step.longest == 4 * 9 + 2 * 9


def test_a_pipe_of_more_ranks_than_run_is_planned_and_not_run() -> None:
    verdict = check(
        GPIPE.replace("m)", "4)"),
        cases=cases(worlds=(1,), p=(16,)),
        inputs=lambda case, rank: {"rank": rank, "p": case.p, "m": 4},
        pipe=lambda case: Pipe.straight(range(case.p), 4),
    )
    assert verdict.passed
    assert verdict.compared == 16 * 8
    assert not any(verdict.trace.events)


def test_several_stages_on_a_rank_and_split_backward() -> None:
    """ZB-V, told word by word."""
    schedule = zb_v(3, 4)
    told = str(schedule).splitlines()
    body = f"return [Action(Kind(w[0]), int(w[1]), int(w[3])) for w in {told}[rank].split()]"
    verdict = check(body, pipe=lambda case: Pipe(schedule.placement, schedule.routes))
    assert verdict.passed, str(verdict)
    assert verdict.compared == 6 * 4 * 3 + 6 * 9 + 1


def test_a_schedule_that_follows_from_more_than_its_arguments_is_refused() -> None:
    import_dist = "import torch.distributed as dist"
    body = f"{import_dist}\nown = {FORWARD}\nreturn own + {BACKWARD} if dist.get_rank() else own[::-1] + {BACKWARD}"
    verdict = check(body)
    assert "ranks 0 and 1 find different orders: they must follow from the arguments alone" in verdict.reason


def test_one_process_has_the_gradients_of_every_stage_on_its_rank() -> None:
    pipe = Pipe.straight((0, 1, 1, 0), 2)
    first, second = one_process(pipe, 2)
    assert set(first) == {"the gradient of stage 0", "the gradient of stage 3", "the loss"}
    assert set(second) == {"the gradient of stage 1", "the gradient of stage 2"}


def test_orders_make_a_schedule_to_draw() -> None:
    def forward_only(rank: int, m: int) -> list[Action]:
        return [Action(Kind.FORWARD, rank, k) for k in range(m)]

    found = orders_of(forward_only, Pipe.straight((0, 1), 2), [{"rank": rank, "m": 2} for rank in range(2)])
    assert str(found) == "F0.0 F0.1\nF1.0 F1.1"


def test_a_lesson_draws_the_learners_schedule(tmp_path: Path) -> None:
    course, name = Course(tmp_path), "pipeline_parallel.gpipe_order"
    assert your_schedule(name, course=course, ranks=3, m=2) == gpipe(3, 2)  # nothing is solved yet: the reference
    backwards = text.solution(catalog.find(name)).replace("forward + backward", "forward[::-1] + backward[::-1]")
    assert check_of(name, backwards, course=course).passed
    mine = your_schedule(name, course=course, ranks=3, m=2)
    assert str(mine).splitlines()[0] == "F0.1 F0.0 B0.1 B0.0"


def test_only_schedule_puzzles_have_schedules(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ranks\.swap asks for no schedule"):
        your_schedule("ranks.swap", course=Course(tmp_path), ranks=3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ranks": 4}, r"gpipe_order depends on more than ranks: give m=, too"),
        ({"ranks": 0, "m": 2}, r"ranks=0 make no pipeline: it has one at least"),
    ],
)
def test_a_pipeline_that_is_not_whole_is_refused(asked: dict[str, int], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        your_schedule("gpipe_order", course=Course(tmp_path), **asked)
