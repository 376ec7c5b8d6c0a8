"""Clusters for grading that all of these tests share."""

from collections.abc import Iterator

import pytest

from puzzles.grading.pool import Pool


@pytest.fixture(scope="session")
def quick_pool() -> Iterator[Pool]:
    """clusters that do not wait long, for programs that never end."""
    pool = Pool(timeout=3.0)
    yield pool
    pool.close()
