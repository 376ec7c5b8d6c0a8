"""The same ranks as for the forms with replicas, and some that can write checkpoints."""

from collections.abc import Callable

import pytest

from reference.cluster import Cluster

from ..data_parallel.conftest import ranks

__all__ = ["eight", "ranks", "two"]

Clusters = Callable[..., Cluster]


@pytest.fixture
def eight(clusters: Clusters) -> Cluster:
    return clusters(8)


@pytest.fixture
def two(clusters: Clusters) -> Cluster:
    return clusters(2, watch=True)
