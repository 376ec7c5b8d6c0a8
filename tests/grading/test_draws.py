"""A check draws sizes and values anew: a right solution is right with all of them."""

from dataclasses import replace

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.engine import grade
from puzzles.grading.pool import Pool

DRAWS, TOGETHER = 24, 8  # checks whose draws are looked at; as many at a time


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", [name for name in catalog.names() if catalog.find(name).drawn])
def test_the_solution_passes_whatever_is_drawn(name: str, own_pool: Pool) -> None:
    puzzle = catalog.find(name)
    named = len(puzzle.cases)
    cases = [case for seed in range(DRAWS) for case in puzzle.dealt(seed).cases[named:]]
    for first in range(0, len(cases), TOGETHER):
        some = replace(puzzle, cases=tuple(cases[first : first + TOGETHER]), drawn=(), large=None)
        verdict = grade(some, text.solution(puzzle), pool=own_pool)
        assert verdict.passed, verdict
