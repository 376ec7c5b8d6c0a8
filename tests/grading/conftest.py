"""Clusters for grading that all of these tests share."""

from collections.abc import Iterator

import pytest

from puzzles.grading.pool import Pool


@pytest.fixture(scope="session")
def quick_pool() -> Iterator[Pool]:
    """Clusters that wait for one second only, for programs that never end."""
    pool = Pool(timeout=1.0)
    yield pool
    pool.close()
