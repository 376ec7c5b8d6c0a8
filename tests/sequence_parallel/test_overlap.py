"""A ring hides messages behind products: a step takes as long as the longer of both, and one product to begin with."""

from collections.abc import Callable
from functools import partial

import pytest

from reference.cluster import Cluster
from reference.sequence_parallel import RingRegion, SequenceRegion

from ..tensor_parallel.slow import ENOUGH, PRODUCT, PRODUCTS, measure

RANKS = 4
PART = PRODUCT / RANKS  # seconds, of the product with one slice
ROUNDS = 5  # of the slices: two gathers and two sums of two layers, and the columns' second gather
PASSES = ROUNDS * (RANKS - 1)  # of a slice to the next rank
QUICK, SLOW = 0.75 * PART, 2 * PART  # seconds of a pass


@pytest.fixture
def four(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(RANKS)


def test_a_ring_on_a_quick_network_takes_as_long_as_its_products(four: Cluster) -> None:
    """Without overlap it would be half as much again."""
    assert PASSES * QUICK > 0.4 * PRODUCTS
    found = measure(four, RingRegion, QUICK, expected=PRODUCTS)
    assert abs(found.off) < ENOUGH, found


def test_a_ring_on_a_slow_network_takes_as_long_as_its_messages(four: Cluster) -> None:
    """And as one product of a slice in each round, which has nothing to hide behind: two products in rows' backward."""
    assert SLOW >= 2 * PART
    expected = PASSES * SLOW + (ROUNDS + 1) * PART
    assert expected < 0.8 * (PASSES * SLOW + PRODUCTS)
    found = measure(four, RingRegion, SLOW, expected)
    assert abs(found.off) < ENOUGH, found


def test_a_gather_before_its_product_takes_the_sum(four: Cluster) -> None:
    found = measure(four, SequenceRegion, SLOW, expected=PASSES * SLOW + PRODUCTS)
    assert abs(found.off) < ENOUGH, found


def test_begun_early_two_of_five_rounds_hide(four: Cluster) -> None:
    """In the columns' backward: the gather behind the inputs' gradient, the sum behind the weights'."""
    assert (RANKS - 1) * QUICK < PRODUCT
    overlapping = partial(SequenceRegion, overlap=True)
    found = measure(four, overlapping, QUICK, expected=PRODUCTS + 3 * (RANKS - 1) * QUICK)
    assert abs(found.off) < ENOUGH, found
