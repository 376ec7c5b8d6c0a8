"""What is asked of every puzzle: its solution passes, its stub fails, its wrong solutions are told why."""

import re

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.engine import grade
from puzzles.grading.puzzle import Puzzle, Wrong
from puzzles.grading.verdict import Stage

PUZZLES = [catalog.find(name) for name in catalog.names()]
MISTAKES = [(puzzle, mistake) for puzzle in PUZZLES for mistake in puzzle.wrong]


def named(parameter: Puzzle | Wrong) -> str:
    return parameter.name


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_solution_passes(puzzle: Puzzle) -> None:
    verdict = grade(puzzle, text.solution(puzzle))
    assert verdict.passed, str(verdict)
    assert verdict.compared > 0


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_no_target_is_below_the_best_that_is_known(puzzle: Puzzle) -> None:
    for budget in puzzle.budgets:
        assert all(budget.best(case) <= budget.target(case) for case in puzzle.cases), budget.measure


@pytest.mark.parametrize("puzzle", PUZZLES, ids=named)
def test_the_stub_fails(puzzle: Puzzle) -> None:
    verdict = grade(puzzle, text.stub(puzzle))
    assert not verdict.passed
    assert verdict.stage is Stage.UNSOLVED or "NotImplementedError" not in puzzle.body


@pytest.mark.parametrize(("puzzle", "mistake"), MISTAKES, ids=named)
def test_a_mistake_is_told_why(puzzle: Puzzle, mistake: Wrong) -> None:
    verdict = grade(puzzle, text.wrong(puzzle, mistake))
    assert not verdict.passed
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
    used = {puzzle.oracle, puzzle.judge} - {None}
    assert puzzle.function not in used
    assert all(puzzle.entry not in function.__code__.co_names for function in used)
