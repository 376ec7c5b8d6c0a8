"""The clusters that the cases of this folder share."""

from collections.abc import Iterator

import pytest

from tests.watch.warm import WarmClusters


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmClusters]:
    """Watched clusters, kept warm from case to case."""
    with WarmClusters() as clusters:
        yield clusters
