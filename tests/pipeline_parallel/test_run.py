"""Whatever the order, a pipeline computes what one process computes."""

from collections.abc import Callable
from functools import lru_cache

import pytest

from reference.cluster import Cluster
from reference.oracle import relative_difference
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v

from .pipes import one_process, pipelined, together
from .test_orders import ORDERS

Clusters = Callable[..., Cluster]
ALL = ORDERS | {order.__name__: order for order in (zb_h1, zb_h2, zb_v, dual_pipe_v, dual_pipe)}
TWICE = ("interleaved 2", "breadth-first 2", "zb_v", "dual_pipe_v")
oracle = lru_cache(one_process)


def fits(name: str, ranks: int) -> bool:
    """Whether eight layers make so many stages, and two directions so many pairs of ranks."""
    chunks = int(name[-1]) if name[-1] in "234" and name[-2] == " " else 1 + (name in TWICE)
    return ranks * chunks <= 8 and (name != "dual_pipe" or ranks % 2 == 0)


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("name", ALL)
def test_every_order_equals_one_process(clusters: Clusters, name: str, m: int) -> None:
    """In float64 the order of additions costs 1e-15, a mistake 1e-3."""
    loss, gradients = oracle(m)
    for ranks in (1, 2, 3, 4, 8) if m == 3 else (2, 4):
        if fits(name, ranks):
            found_loss, found = together(clusters(8).run(pipelined, ALL[name], ranks, m))
            assert found_loss == pytest.approx(loss, rel=1e-12)
            assert found.keys() == gradients.keys()
            assert max(relative_difference(found[key], gradients[key]) for key in gradients) < 1e-10, ranks


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved 2", "zb_v", "dual_pipe"])
def test_the_watch_has_nothing_to_say(clusters: Clusters, name: str) -> None:
    loss, _ = oracle(4)
    assert together(clusters(4, watch=True).run(pipelined, ALL[name], 4, 4))[0] == pytest.approx(loss, rel=1e-12)
