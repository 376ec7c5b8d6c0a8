"""A check draws sizes and values anew: a right solution is right with all of them."""

import pytest

from puzzles import catalog
from puzzles.grading.pool import Pool
from tests.grading.many_draws import verdicts

DRAWS = range(24)  # seeds of checks


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", [name for name in catalog.names() if catalog.find(name).drawn])
def test_the_solution_passes_whatever_is_drawn(name: str, own_pool: Pool) -> None:
    for verdict in verdicts(catalog.find(name), DRAWS, own_pool):
        assert verdict.passed, verdict


def test_times_that_are_drawn_grow_with_size() -> None:
    """What was drawn in one of 160 checks fell: noise was more than all bytes took."""
    puzzle = catalog.find("networks.alpha_beta")
    for seed in range(1000):
        case = puzzle.dealt(seed).cases[-1]
        seconds = puzzle.inputs(case, 0)["seconds"]
        assert seconds[0] < seconds[-1], case
