"""A check draws sizes and values anew: a right solution is right with all of them."""

from dataclasses import replace

import pytest

from puzzles import catalog
from puzzles.grading.pool import Pool
from puzzles.grading.puzzle import drawn
from tests.grading.many_draws import verdicts

DRAWS = range(24)  # seeds of checks


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", [name for name in catalog.names() if catalog.find(name).drawn])
def test_the_solution_passes_whatever_is_drawn(name: str, own_pool: Pool) -> None:
    for verdict in verdicts(catalog.find(name), DRAWS, own_pool):
        assert verdict.passed, verdict


def test_a_draw_that_refuses_is_named_by_its_seed(own_pool: Pool) -> None:
    """Noise of 5 % is more than 400 KB take at 51 GB/s, beside a latency of 0.8 ms: such times fall."""
    falling = drawn(worlds=(1,), sizes=[(7, 270, 1_000, 400_000)], noisy=(True, False), alpha=(7.7e-4,), beta=(5.1e10,))
    puzzle = replace(catalog.find("networks.alpha_beta"), drawn=(falling,))
    refused = {verdict.seed for verdict in verdicts(puzzle, DRAWS, own_pool) if not verdict.passed}
    assert refused == {seed for seed in DRAWS if puzzle.dealt(seed).cases[-1].noisy} and 0 < len(refused) < len(DRAWS)


def test_times_that_are_drawn_grow_with_size() -> None:
    """What was drawn in one of 160 checks fell: noise was more than all bytes took."""
    puzzle = catalog.find("networks.alpha_beta")
    for seed in range(1000):
        case = puzzle.dealt(seed).cases[-1]
        seconds = puzzle.inputs(case, 0)["seconds"]
        assert seconds[0] < seconds[-1], case
