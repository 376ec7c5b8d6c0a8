"""A rank dies, hangs or stands still for a moment at some of many points of its way; `all_points` has all of them."""

from collections.abc import Iterator
from functools import partial

import pytest

from reference.cluster import Cluster
from reference.resilience.lab.faults import die, hang

from .all_points import COMING, HUNG, LEASE, slowed
from .elastic_runs import PRELOAD, require_right, run

POINTS = 16
WAY = 18_000  # points that a rank passes, or a few more


@pytest.fixture(scope="module")
def four() -> Iterator[Cluster]:
    with Cluster(4, timeout=100, preload=PRELOAD) as cluster:
        yield cluster


@pytest.mark.turns(8)
@pytest.mark.parametrize("number", range(POINTS))
def test_wherever_a_rank_dies_the_others_learn_the_same(four: Cluster, number: int) -> None:
    at = COMING + WAY * number // POINTS
    require_right(run(four, points={number % 4: at}, at_point=die))


@pytest.mark.turns(16)
@pytest.mark.parametrize("number", range(POINTS))
def test_wherever_a_rank_hangs_the_others_learn_the_same(four: Cluster, number: int) -> None:
    at = COMING + WAY * number // POINTS
    require_right(run(four, points={number % 4: at}, at_point=partial(hang, HUNG), lease=LEASE))


@pytest.mark.turns(8)
@pytest.mark.parametrize("number", range(POINTS))
def test_wherever_a_rank_stands_still_the_others_wait_for_it(four: Cluster, number: int) -> None:
    at = COMING + WAY * number // POINTS
    require_right(slowed(four, points={number % 4: at}))
