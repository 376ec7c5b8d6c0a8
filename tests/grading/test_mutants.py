"""Would the cases of a puzzle notice a small mistake? Mutants of five reference solutions must be rejected."""

import pytest

from puzzles import catalog
from puzzles.grading import text
from puzzles.grading.engine import passes
from puzzles.grading.pool import Pool
from tests.grading.mutants import mutants

PUZZLES = (
    "ranks.ring_shift",
    "collectives.broadcast_tree",
    "collectives.ring_reduce_scatter",
    "collectives.ring_all_reduce",
    "networks.ring_time",
)
SHARE = 0.95  # of the mutants that are not equivalent
EQUIVALENT = {
    # In the round with distance n, no rank is n away from another: nothing is sent.
    ("collectives.broadcast_tree", "while distance < n:  ->  while distance <= n:"),
}


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", PUZZLES)
def test_mutants_are_rejected(name: str, quick_pool: Pool) -> None:
    puzzle = catalog.find(name)
    made = [each for each in mutants(text.solution(puzzle), puzzle.entry) if (name, each.change) not in EQUIVALENT]
    alive = [each.change for each in made if passes(puzzle, each.source, pool=quick_pool)]
    assert len(made) >= 9
    assert len(alive) <= (1 - SHARE) * len(made), "\n".join(alive)


@pytest.mark.parametrize(("name", "change"), EQUIVALENT)
def test_equivalents_are_still_there_and_still_pass(name: str, change: str, quick_pool: Pool) -> None:
    puzzle = catalog.find(name)
    (mutant,) = [each for each in mutants(text.solution(puzzle), puzzle.entry) if each.change == change]
    assert passes(puzzle, mutant.source, pool=quick_pool)


def test_every_kind_of_change_is_made() -> None:
    source = """
def f(a, b):
    \"\"\"Stays.\"\"\"
    c = -a + b * 2
    if a < b and c == 3:
        c += g(a, b)
    return c
"""
    made = {each.change for each in mutants(source, "f")}
    assert made == {
        "c = -a + b * 2  ->  nothing",
        "c = -a + b * 2  ->  c = -a - b * 2",
        "c = -a + b * 2  ->  c = +a + b * 2",
        "c = -a + b * 2  ->  c = -a + b // 2",
        "c = -a + b * 2  ->  c = -a + b * 3",
        "c = -a + b * 2  ->  c = -a + b * 1",
        "if a < b and c == 3:  ->  if not (a < b and c == 3):",
        "if a < b and c == 3:  ->  if a < b or c == 3:",
        "if a < b and c == 3:  ->  if a <= b and c == 3:",
        "if a < b and c == 3:  ->  if a < b and c != 3:",
        "if a < b and c == 3:  ->  if a < b and c == 4:",
        "if a < b and c == 3:  ->  if a < b and c == 2:",
        "c += g(a, b)  ->  c -= g(a, b)",
        "c += g(a, b)  ->  c += g(b, a)",
    }
