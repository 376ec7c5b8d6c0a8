"""What hides behind what: a step takes as long as the longer of computing and sending, and what is left at its ends.

In virtual time, exactly. `rankwise bench overlap` measures the same steps in real time.
"""

from collections.abc import Callable

import pytest

from reference.cluster import Cluster

from .clocks import Case, VirtualTime
from .data_parallel import CASES as DATA_PARALLEL
from .tensor_parallel import CASES as TENSOR_PARALLEL

CASES = {**DATA_PARALLEL, **TENSOR_PARALLEL}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_step_takes_as_long_as_what_nothing_hides(case: Case, clusters: Callable[..., Cluster]) -> None:
    taken = clusters(case.ranks).run(case.step, VirtualTime())
    assert taken == [pytest.approx(case.seconds, rel=1e-9)] * case.ranks
