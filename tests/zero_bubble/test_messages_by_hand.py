"""A V, and a forward beside a backward: the values of one process, and no message too many."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.zero_bubble.answers.overlap import overlapped_pair
from reference.zero_bubble.answers.v import through_a_v

SAMPLES, WIDTH, DOUBLE = 2, 3, 8
PIECES = 3
TOLERANCE = 1e-12  # float64, products of a few matrices


def weight(stage: int) -> Tensor:
    """[D, D], the same on every rank."""
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(stage), dtype=torch.float64)


def data() -> tuple[Tensor, Tensor]:
    """x and target."""
    generator = torch.Generator().manual_seed(99)
    return tuple(torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))


def in_a_v() -> tuple[Tensor, Tensor]:
    """The gradients of this rank's weights; data is on rank 0 alone."""
    x, target = data() if dist.get_rank() == 0 else [torch.full_like(each, torch.nan) for each in data()]
    return through_a_v(x, target, weight, torch.mm, dist.group.WORLD)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_v_has_the_gradients_of_one_process(n: int, clusters: Callable[..., Cluster]) -> None:
    found = clusters(n).run(in_a_v)
    x, target = data()
    weights = [weight(stage).requires_grad_() for stage in range(2 * n)]
    for each in weights:
        x = x @ each.T
    expected = torch.autograd.grad(0.5 * (x - target).square().sum(), weights)
    for rank, gradients in enumerate(found):
        wanted = (expected[rank], expected[2 * n - 1 - rank])
        torch.testing.assert_close(tuple(gradients), wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_neighbours_send_two_messages_each_way_and_the_turn_none(n: int, clusters: Callable[..., Cluster]) -> None:
    _, trace = clusters(n).trace(in_a_v)
    message = SAMPLES * WIDTH * DOUBLE
    neighbours = [(rank > 0) + (rank < n - 1) for rank in range(n)]
    assert list(trace.bytes_sent) == [2 * count * message for count in neighbours]


def row(rank: int, n: int) -> Tensor:
    """[n, D], of a rank."""
    return torch.arange(n * WIDTH, dtype=torch.float64).view(n, WIDTH) + 100 * rank


def a_pair() -> tuple[Tensor, Tensor]:
    """x and gradient after all pieces; a piece doubles the one, and adds the number of the rank to the other."""
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = [lambda x: 2 * x] * PIECES, [lambda x: x + rank] * PIECES
    return overlapped_pair(*pieces, row(rank, n), -row(rank, n), dist.group.WORLD)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_two_directions_in_turn_are_those_one_behind_the_other(n: int, clusters: Callable[..., Cluster]) -> None:
    found = clusters(n).run(a_pair)
    x = torch.stack([row(rank, n) for rank in range(n)])
    gradient = -x
    for _ in range(PIECES):
        x = (2 * x).transpose(0, 1)
        gradient = (gradient + torch.arange(n, dtype=torch.float64).view(n, 1, 1)).transpose(0, 1)
    for rank, (of_x, of_gradient) in enumerate(found):
        torch.testing.assert_close(of_x, x[rank], rtol=0, atol=0)
        torch.testing.assert_close(of_gradient, gradient[rank], rtol=0, atol=0)
