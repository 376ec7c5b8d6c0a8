"""DDP sends while backward computes: a step takes as long as the longer of both, and what is left at the end."""

from collections.abc import Callable
from functools import partial

import pytest

from reference.cluster import Cluster
from reference.data_parallel.replicated import DistributedDataParallel, Replicated, flat, naive

from .slow import BACKWARD, COMPUTE, FORWARD, LAYERS, measure
from .training import Make

ENOUGH = 0.1
PASS = 0.020  # seconds, of one layer; an all-reduce is two

DDP = partial(DistributedDataParallel, bucket_bytes=0)


@pytest.fixture
def pair(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(2)


def test_all_but_the_last_bucket_hides_behind_backward(pair: Cluster) -> None:
    found = measure(pair, DDP, PASS, expected=COMPUTE + 2 * PASS)
    assert abs(found.off) < ENOUGH, found


def test_on_a_slow_network_all_but_one_layers_backward_hides_behind_it(pair: Cluster) -> None:
    """The first bucket leaves when the last layer is done; from then on the network is never idle."""
    slow = 2.5 * PASS
    assert 2 * slow > BACKWARD
    found = measure(pair, DDP, slow, expected=LAYERS * FORWARD + BACKWARD + LAYERS * 2 * slow)
    assert abs(found.off) < ENOUGH, found


@pytest.mark.parametrize(
    "make",
    [partial(Replicated, reduce=naive), partial(Replicated, reduce=flat), DistributedDataParallel],
    ids=["naive", "flat", "DDP in one bucket"],
)
def test_without_overlap_it_is_the_sum(pair: Cluster, make: Make) -> None:
    found = measure(pair, make, PASS, expected=COMPUTE + LAYERS * 2 * PASS)
    assert abs(found.off) < ENOUGH, found
