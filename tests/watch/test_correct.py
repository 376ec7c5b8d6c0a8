"""No correct program is ever accused of a mistake, or disturbed by being watched."""

import pytest

from reference.cluster.errors import RankError
from tests.watch import correct
from tests.watch.cases import Correct
from tests.watch.warm import WarmClusters

REPETITIONS = 3  # the benchmark repeats each 50 times


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", correct.CASES, ids=lambda case: case.name)
def test_correct_program_is_not_accused(case: Correct, warm: WarmClusters):
    for _ in range(REPETITIONS):
        outcome, _ = warm.run(case)
        assert not isinstance(outcome, RankError), f"\n{type(outcome).__name__}: {outcome}"
