"""Two ranks that know torch's and `transformers`' models."""

from collections.abc import Callable

import pytest

from reference.cluster import Cluster


@pytest.fixture(scope="session")
def two(clusters: Callable[..., Cluster]) -> Cluster:
    preload = ("torch._dynamo", "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama")
    return clusters(2, watch=True, preload=preload)
