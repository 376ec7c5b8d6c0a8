"""Memory that no meter of tensors sees: a process that holds more than the reference solution's is refused."""

import re

import pytest

from puzzles import catalog
from puzzles.grading import text, weigh
from puzzles.grading.engine import grade
from puzzles.grading.pool import shared
from puzzles.grading.runs import Solution

LIMITED = [name for name in catalog.names() if any(b.measure in weigh.OF_MEMORY for b in catalog.find(name).budgets)]
HIDDEN = {  # puzzle: an edit of its solution that hides memory from the meters
    "collectives.ring_all_gather": ("    rank, n = dist", "    hidden = out.numpy().copy()\n    rank, n = dist"),
    "collectives.ring_all_reduce": ("    rank, n = dist", "    hidden = x.numpy().copy()\n    rank, n = dist"),
    "collectives.broadcast_tree": ("    rank, n = dist", "    hidden = bytearray(x.numpy())\n    rank, n = dist"),
    "data_parallel.shard_batch": ("    return batch", "    hidden = batch.numpy().copy()\n    return batch"),
    "zero.scatter_gradients": (
        "    for layer, gradient in backward:\n",
        "    hidden = []\n    for layer, gradient in backward:\n        hidden.append(gradient.numpy().copy())\n",
    ),
    "tensor_parallel.matmul_2d": (
        "    dist.broadcast(piece, group=group, group_src=owner)\n",
        "    dist.broadcast(piece, group=group, group_src=owner)\n    block.hidden = [*getattr(block, 'hidden', ()), "
        "piece.numpy().copy()]\n",
    ),
    "zero.weight_sharded": (
        "        upstream = upstream @ weight\n",
        "        upstream = upstream @ weight\n        gradient.hidden = weight.numpy().copy()\n",
    ),
    "zero_bubble.weight_stashing": (
        "    stash: dict[int, Tensor] = {}\n    for kind, micro_batch in line:\n",
        "    stash: dict[int, Tensor] = {}\n    hidden = []\n    for kind, micro_batch in line:\n"
        "        hidden.append(weight.numpy().copy())\n",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_puzzle_with_a_memory_budget_has_a_large_case(name):
    large = catalog.find(name).large
    assert large is not None and large.world_size <= 4


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_from_the_meters_counts(name):
    puzzle, (before, after) = catalog.find(name), HIDDEN[name]
    solution = text.solution(puzzle)
    assert solution.count(before) == 1
    pool = shared()
    assert weigh.verdict(Solution(puzzle, solution, "solution.py"), pool) is None
    verdict = weigh.verdict(Solution(puzzle, solution.replace(before, after), "solution.py"), pool)
    assert verdict is not None and "a rank's process grows by" in verdict.reason


def test_a_module_that_may_not_be_imported_is_named_before_it_is_weighed():
    """On ranks that are new: on those that have imported it before, it weighs nothing."""
    puzzle = catalog.find("memory.recompute_block")
    (own,) = (wrong for wrong in puzzle.wrong if wrong.name == "torch's own")
    assert re.search(own.diagnosis, grade(puzzle, text.wrong(puzzle, own), seed=3).reason)
