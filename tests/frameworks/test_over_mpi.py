"""The same programs over MPI: the curve of one process, and in the trace of each rank the bytes of our formula."""

import pytest

from reference.frameworks.catalogue import FRAMEWORKS
from reference.frameworks.lab import runs

MPI = FRAMEWORKS["mpi"]


@pytest.mark.parametrize("feature", ["fsdp2", "1f1b", "sp"])
def test_what_is_said_over_mpi_is_heard(feature: str) -> None:
    """Collectives of all ranks, sends and receives, and groups beside the world."""
    pytest.importorskip("mpi4py")
    wanted = MPI.features[feature]
    row = runs.run("mpi", MPI, feature, wanted)
    assert row.is_equal, row.error
    assert (row.sent == row.formula) == (not wanted.differs) and row.calls and row.peak
