"""Steps of layers that sleep, on a network that takes its time: seconds measured beside what nothing can hide.

`tests/overlap` proves the same steps in virtual time. Here clock and sleep are real, so what is added is what forms,
messages, and waking up really take: a step is as long as on its slowest rank, median of rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

from reference.cluster import Cluster

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from tests.overlap.data_parallel import CASES as DATA_PARALLEL  # noqa: E402
from tests.overlap.tensor_parallel import CASES as TENSOR_PARALLEL  # noqa: E402

ROUNDS = 5
BARS = ((DATA_PARALLEL, 1 / 1.10), (TENSOR_PARALLEL, 1 / 1.15))  # what nothing hides, of what a step takes


def measure(report: Callable[[Row], None]) -> None:
    """Every case in its turn."""
    for cases, bar in BARS:
        for name, case in cases.items():
            with Cluster(case.ranks) as cluster:
                cluster.run(case.step, time)  # the first one imports
                taken = statistics.median(max(cluster.run(case.step, time)) for _ in range(ROUNDS))
            report(rows.faster(name, taken, case.seconds, "s", bar))


if __name__ == "__main__":
    rows.main("overlap", measure)
