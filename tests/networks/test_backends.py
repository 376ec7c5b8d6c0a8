"""Three libraries that carry one sum: each is measured, by whatever starts the ranks, and all agree."""

from pathlib import Path

import pytest

from reference.networks.lab import backends

SIZES = (1 << 10, 1 << 14)


@pytest.mark.parametrize(
    ("mpiexec", "ways"),
    [(backends.MPIEXEC, ["MPI", "gloo", "by hand"]), (Path("/nowhere"), ["gloo", "by hand"])],
    ids=["mpiexec", "torchrun"],
)
def test_each_way_is_measured_at_each_size(monkeypatch: pytest.MonkeyPatch, mpiexec: Path, ways: list[str]) -> None:
    monkeypatch.setattr(backends, "MPIEXEC", mpiexec)
    found = backends.by_backend(2, SIZES)
    assert list(found) == ways
    for points in found.values():
        assert [size for size, _ in points] == list(SIZES)
        assert all(seconds > 0 for _, seconds in points)


def test_what_ranks_say_is_told() -> None:
    with pytest.raises(RuntimeError, match="invalid literal for int"):
        backends.by_backend(2, ["many"])
