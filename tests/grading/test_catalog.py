"""What is asked of every puzzle: its solution passes, its stub fails, its wrong solutions are told why."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FunctionType

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.engine import grade
from puzzles.grading.pool import Pool
from puzzles.grading.puzzle import Measure, Puzzle, Wrong
from puzzles.grading.verdict import Stage

PUZZLES = [catalog.find(name) for name in catalog.names()]
MISTAKES = [(puzzle, mistake) for puzzle in PUZZLES for mistake in puzzle.wrong]


def named(parameter: Puzzle | Wrong) -> str:
    return parameter.name


@pytest.mark.turns(8)
@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_solution_passes(puzzle: Puzzle, own_pool: Pool) -> None:
    """On ranks that may have run other texts; on new ones, as a learner's, it passes in the lessons, all of them."""
    verdict = grade(puzzle, text.solution(puzzle), pool=own_pool)
    assert verdict.passed, str(verdict)
    assert verdict.compared > 0


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_no_target_is_below_the_best_that_is_known(puzzle: Puzzle) -> None:
    for budget in puzzle.budgets:
        assert all(budget.best(case) <= budget.target(case) for case in puzzle.cases), budget.measure


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_lines_are_counted_only_where_a_large_case_has_the_last_word(puzzle: Puzzle) -> None:
    """Loops in C are no lines: only processor time sees them, and only where there is much to go through."""
    assert puzzle.scale or Measure.LINES not in {budget.measure for budget in puzzle.budgets}


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_stub_fails(puzzle: Puzzle, own_pool: Pool) -> None:
    verdict = grade(puzzle, text.stub(puzzle), pool=own_pool)
    assert not verdict.passed
    assert verdict.stage is Stage.UNSOLVED or puzzle.is_to_mend


@pytest.mark.turns(16)
@pytest.mark.parametrize(("puzzle", "mistake"), MISTAKES, ids=named)
def test_a_mistake_is_told_why(puzzle: Puzzle, mistake: Wrong, own_pool: Pool) -> None:
    """Whatever is drawn: as the named cases and the large one tell it, or where that has another word, as these do."""
    for check in (replace(puzzle, drawn=()), replace(puzzle, drawn=(), scale=None, large=None)):
        verdict = grade(check, text.wrong(puzzle, mistake), pool=own_pool)
        assert not verdict.passed
        if re.search(mistake.diagnosis, verdict.reason):
            break
    assert re.search(mistake.diagnosis, verdict.reason), f"{verdict.stage}: {verdict.reason}"
    assert len(verdict.reason.splitlines()) <= 9


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_there_are_enough_hints_and_mistakes(puzzle: Puzzle) -> None:
    assert len(puzzle.hints) >= 2
    assert len(puzzle.wrong) >= 4
    assert len({mistake.name for mistake in puzzle.wrong}) == len(puzzle.wrong)
    right_at_a_price = [mistake.name for mistake in puzzle.wrong if "right, but" in mistake.diagnosis]
    assert right_at_a_price, "one mistake must have the right answer at the wrong cost (diagnosis: 'right, but ...')"


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_cases_cover_what_goes_wrong(puzzle: Puzzle) -> None:
    sizes = {case.n for case in puzzle.cases}
    if sizes != {1}:
        assert len({case.seed for case in puzzle.cases}) > 1
        assert any(n % 2 and n > 1 for n in sizes) or max(sizes) == 2
        assert max(sizes) <= 8


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_oracle_is_not_the_reference(puzzle: Puzzle) -> None:
    used: set[FunctionType] = set()
    for function in {puzzle.oracle, puzzle.judge} - {None}:
        add_all_it_calls(function, used)
    assert puzzle.function not in used


def add_all_it_calls(function: object, used: set[FunctionType]) -> None:
    """Add a function, and those that it names: in comprehensions, lambdas and what it closes over, too."""
    if not isinstance(function, FunctionType) or function in used or function.__module__.startswith("torch"):
        return
    used.add(function)
    named = {name for code in codes(function.__code__) for name in code.co_names}
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    for each in [*(function.__globals__.get(name) for name in named), *closed]:
        add_all_it_calls(each, used)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and all code inside of it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def test_a_call_is_found_wherever_it_hides() -> None:
    def hidden(case: object, inputs: list) -> list:
        return [forward_again(each) for each in inputs]

    def forward_again(x: object) -> object:
        return named(x)

    used: set[FunctionType] = set()
    add_all_it_calls(hidden, used)
    assert named in used
