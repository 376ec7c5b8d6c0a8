"""The short functions that the puzzles of this chapter are about: each is what one process computes with all tokens."""

import pytest
import torch.distributed as dist

from puzzles import catalog
from puzzles.grading.driver import described
from puzzles.grading.puzzle import Puzzle
from puzzles.grading.values import compare, expectations
from reference.memory.korthikanti import LayerShape
from reference.sequence_parallel.answers.activations import activation_bytes

PUZZLES = [catalog.find(name) for name in catalog.select("sequence_parallel")]
RANKS = 4


@pytest.mark.parametrize("puzzle", [each for each in PUZZLES if each.takes_group], ids=lambda puzzle: puzzle.name)
def test_a_reference_function_equals_one_process(puzzle: Puzzle, clusters) -> None:
    """On whole worlds; the oracles know nothing of slices but where they lie."""
    case = next(case for case in puzzle.cases if case.world_size == RANKS and case.members is None)
    inputs = [dict(puzzle.inputs(case, rank)) for rank in range(case.n)]
    reports = clusters(RANKS).run(answer, puzzle.name, inputs)
    found = compare(case, reports, expectations(puzzle, case, inputs), puzzle.tolerance)
    assert found.right, found.differences


def answer(name: str, inputs: list[dict]) -> dict:
    """What this rank makes of its inputs, as a drive reports it."""
    puzzle, group = catalog.find(name), dist.group.WORLD
    values = puzzle.drive(puzzle.function, {**inputs[group.rank()], "group": group})
    return {key: described(value, copies=True) for key, value in values.items() if value is not group}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("scores", [False, True])
def test_the_envelope_is_the_sum_of_the_table(sequence_parallel: bool, scores: bool) -> None:
    layer = LayerShape(sequence=2048, batch=3, width=12_288, heads=96, tensor_parallel=8)
    forms = {
        (False, True): layer.tensor,
        (True, True): layer.tensor_sequence,
        (False, False): layer.tensor_selective,
        (True, False): layer.tensor_sequence_selective,
    }
    found = activation_bytes(2048, 3, 12_288, 96, 8, sequence_parallel, scores)
    assert found == forms[sequence_parallel, scores]()
