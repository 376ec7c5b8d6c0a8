"""FSDP gathers the next unit, and reduces the last one, while one computes: only the ends are waited for."""

from collections.abc import Callable
from functools import partial

import pytest

from reference.cluster import Cluster
from reference.zero import FullySharded, Sharded

from ..data_parallel.slow import BACKWARD, COMPUTE, FORWARD, LAYERS, measure

ENOUGH = 0.1
PASS = 0.020  # seconds, of one layer: a gather or a reduction

NO_PREFETCH = partial(FullySharded, prefetch=False)


@pytest.fixture
def pair(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(2)


def test_with_prefetch_only_the_ends_are_waited_for(pair: Cluster) -> None:
    """The first gather of forward, the first one of backward, and the last reduction."""
    assert PASS < FORWARD and 2 * PASS < BACKWARD
    found = measure(pair, FullySharded, PASS, expected=COMPUTE + 3 * PASS)
    assert abs(found.off) < ENOUGH, found


def test_gathered_once_there_is_one_less_to_wait_for(pair: Cluster) -> None:
    make = partial(FullySharded, reshard_after_forward=False)
    found = measure(pair, make, PASS, expected=COMPUTE + 2 * PASS)
    assert abs(found.off) < ENOUGH, found


def test_on_a_slow_network_compute_hides_behind_it(pair: Cluster) -> None:
    """All three passes of each layer, and one layer's forward and backward, during which there is nothing to send."""
    slow = 2.5 * PASS
    assert LAYERS * 3 * slow > COMPUTE
    found = measure(pair, FullySharded, slow, expected=LAYERS * 3 * slow + FORWARD + BACKWARD)
    assert abs(found.off) < ENOUGH, found


def test_without_prefetch_it_is_the_sum(pair: Cluster) -> None:
    found = measure(pair, NO_PREFETCH, PASS, expected=COMPUTE + LAYERS * 3 * PASS)
    assert abs(found.off) < ENOUGH, found


@pytest.mark.parametrize("stage", [1, 2])
def test_the_reductions_of_zero_hide_and_its_gathers_do_not(pair: Cluster, stage: int) -> None:
    """Parameters can be gathered when they are updated, which is when there is nothing to compute."""
    make = partial(Sharded, stage=stage, bucket_bytes=0)
    found = measure(pair, make, PASS, expected=COMPUTE + PASS + LAYERS * PASS)
    assert abs(found.off) < ENOUGH, found
