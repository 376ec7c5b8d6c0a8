"""Every mistake of the bug zoo is named: the right error, rank, line and words, and the next call works."""

import pytest
import torch
import torch.distributed as dist

from tests.watch import zoo
from tests.watch.cases import Mistake
from tests.watch.verdicts import complaints
from tests.watch.warm import LIMIT, WarmClusters

GRADED = {21, 28, 46, 47, 48, 49, 50, 51, 54}  # rows that need values to compare with: the puzzles' tests hold them


def every_rank_adds_one() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", zoo.CASES, ids=lambda case: case.name)
def test_mistake_is_named(case: Mistake, warm: WarmClusters):
    outcome, _ = warm.run(case)
    assert not complaints(case, outcome), f"\n{type(outcome).__name__}: {outcome}"
    n = case.world_size
    assert warm.call(n, case.deadline or LIMIT, every_rank_adds_one) == [n] * n


def test_every_row_that_needs_no_values_has_a_case():
    assert {case.row for case in zoo.CASES} - {None} == set(range(1, 55)) - GRADED


def test_names_are_unique():
    names = [case.name for case in zoo.CASES]
    assert len(names) == len(set(names))
