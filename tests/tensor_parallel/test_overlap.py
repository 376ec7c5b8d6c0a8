"""The sum of the inputs' gradients travels while those of the weights are computed. The sum of outputs cannot."""

from collections.abc import Callable
from functools import partial

import pytest

from reference.cluster import Cluster
from reference.tensor_parallel import Region

from .slow import ENOUGH, PRODUCT, PRODUCTS, measure

SLICE = 0.050  # seconds, of half of the tokens; an all-reduce of two ranks sends two halves
ALL_REDUCE = 2 * SLICE

Overlapping = partial(Region, overlap=True)


@pytest.fixture
def pair(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(2)


def test_the_gradients_sum_hides_behind_the_weights_gradient(pair: Cluster) -> None:
    """What is left is forward's all-reduce: everything behind it waits for the sum."""
    assert ALL_REDUCE < PRODUCT
    found = measure(pair, Overlapping, SLICE, expected=PRODUCTS + ALL_REDUCE)
    assert abs(found.off) < ENOUGH, found


def test_on_a_slow_network_the_weights_gradient_hides_behind_the_sum(pair: Cluster) -> None:
    slow = 2.5 * SLICE
    assert 2 * slow > PRODUCT
    found = measure(pair, Overlapping, slow, expected=PRODUCTS - PRODUCT + 2 * 2 * slow)
    assert abs(found.off) < ENOUGH, found


def test_without_overlap_it_is_the_sum_of_all(pair: Cluster) -> None:
    slow = 2.5 * SLICE
    found = measure(pair, Region, slow, expected=PRODUCTS + 2 * 2 * slow)
    assert abs(found.off) < ENOUGH, found
