"""The plain algorithms against one process, and the order of a ring against all orders."""

import random
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.decentralized.parabola import inner_step
from reference.decentralized.plain import diloco, local_sgd
from reference.decentralized.ring_order import ring_order, slowest
from reference.errors import BadInput

ROUNDS, H, RATE = 3, 4, 0.2
N = 3


def problem(island: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(island)
    return torch.rand(5, generator=generator).double() + 0.1, torch.randn(5, generator=generator).double()


def trained(which: str) -> Tensor:
    """On each rank: its parameter at the end."""
    weight, (curvature, target) = torch.ones(5, dtype=torch.float64), problem(dist.get_rank())
    train = {"local SGD": local_sgd, "DiLoCo": diloco}[which]
    train([weight], lambda step: inner_step(weight, curvature, target, RATE), ROUNDS, H, dist.group.WORLD)
    return weight


@pytest.mark.parametrize(("which", "rate", "momentum"), [("local SGD", 1.0, 0.0), ("DiLoCo", 0.7, 0.9)])
def test_plain_algorithms(clusters: Callable[..., Cluster], which: str, rate: float, momentum: float) -> None:
    anchor = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    outer = torch.optim.SGD([anchor], lr=rate, momentum=momentum, nesterov=momentum > 0)
    for _ in range(ROUNDS):
        weights = [anchor.detach().clone() for _ in range(N)]
        for island, weight in enumerate(weights):
            for _ in range(H):
                inner_step(weight, *problem(island), RATE)
        anchor.grad = anchor.detach() - torch.stack(weights).mean(0)
        outer.step()
    for found in clusters(N).run(trained, which):
        torch.testing.assert_close(found, anchor.detach(), rtol=0, atol=1e-12)


def test_no_order_of_a_ring_has_a_faster_slowest_link() -> None:
    rates = random.Random(1)
    for n in (1, 2, 3, 4, 5, 6, 7):
        table = [[rates.choice((10, 50, 100, 250)) + rates.random() for _ in range(n)] for _ in range(n)]
        order = ring_order(table)
        assert sorted(order) == list(range(n)) and order[0] == 0
        if n > 1:
            best = max(slowest((0, *others), table) for others in permutations(range(1, n)))
            assert slowest(order, table) == best
    with pytest.raises(BadInput, match="2 rows of 2"):
        ring_order([[1.0], [1.0]])
    with pytest.raises(BadInput, match="positive"):
        ring_order([[0, 0.0], [1.0, 0]])
