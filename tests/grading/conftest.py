"""Clusters for grading that all of these tests share."""

from collections.abc import Iterator

import pytest

from puzzles.grading import engine
from puzzles.grading.pool import Pool


@pytest.fixture(autouse=True)
def the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks without a seed of their own have the same one in every run of these tests."""
    monkeypatch.setattr(engine, "new_seed", lambda: 0)


@pytest.fixture(scope="session")
def quick_pool() -> Iterator[Pool]:
    """clusters that do not wait long, for programs that never end."""
    pool = Pool(timeout=3.0, forgets=False)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def own_pool() -> Iterator[Pool]:
    """Clusters for texts of the course's own, of which there are a thousand: their ranks need not forget."""
    pool = Pool(forgets=False)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def whose_ranks(monkeypatch: pytest.MonkeyPatch, own_pool: Pool) -> None:
    """Checks run on ranks that need not forget: new ones for each text take more time than the text. A learner's
    ranks, which are new, have tests of their own, which have another fixture of this name."""
    monkeypatch.setattr(engine, "shared", lambda: own_pool)
