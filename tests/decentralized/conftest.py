"""Small and steady, as in the tests of training."""

from collections.abc import Callable, Iterator

import pytest

from reference.cluster import Cluster

from ..train.conftest import one_thread, short_text
from ..zero.conftest import eight, ranks

__all__ = ["eight", "four", "one_thread", "ranks", "short_text"]


@pytest.fixture(scope="module")
def four(clusters: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Islands of one rank, or of two."""
    yield clusters(4)
