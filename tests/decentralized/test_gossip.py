"""Neighbours that average: the mean stays, the distance from it shrinks as the matrix says, and SGD learns so."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.decentralized import plain_unscheduled, topology
from reference.decentralized.gossip import Gossip
from reference.decentralized.lab.consensus import measure, train
from reference.decentralized.lab.least_squares import LeastSquares
from reference.decentralized.topology import TOPOLOGIES
from reference.errors import BadInput

ROUNDS = 5
DYADIC = ["ring", "torus", "one-peer", "random pairs"]
"""Topologies of which a rank takes parts that float64 has without rounding."""


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 9])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_matrix_keeps_the_mean(name: str, n: int) -> None:
    for step in range(4):
        topology.check(TOPOLOGIES[name](n, step))
        assert topology.second(TOPOLOGIES[name](n, step)) <= 1 + 1e-12


def test_a_seed_of_64_bits_draws_pairs() -> None:
    drawn = [topology.random_pairs(6, step, seed) for seed in (2**63 - 1, 2**63 - 2) for step in range(8)]
    assert len({tuple(matrix.flatten().tolist()) for matrix in drawn}) > 5
    for matrix in drawn:
        topology.check(matrix)


@pytest.mark.parametrize("n", [2, 3, 6, 8])
def test_exponential_takes_two_parts_of_a_rank_that_is_there_on_both_sides(n: int) -> None:
    parts = topology.exponential(n)[0] * (2 * topology.hops(n) + 1)
    away = [2**power for power in range(topology.hops(n))]
    wanted = [1.0 if rank == 0 else float((rank in away) + (n - rank in away)) for rank in range(n)]
    torch.testing.assert_close(parts, torch.tensor(wanted, dtype=torch.float64))


def whole_numbers(rank: int) -> torch.Tensor:
    return torch.randint(-1000, 1000, (6,), generator=torch.Generator().manual_seed(rank)).double()


def _mixed(name: str) -> torch.Tensor:
    x, gossip = whole_numbers(dist.get_rank()), Gossip(over(dist.group.WORLD), TOPOLOGIES[name])
    for _ in range(ROUNDS):
        gossip.mix(x)
    return x


@pytest.mark.parametrize("name", DYADIC)
def test_rounds_are_the_powers_of_the_matrix_in_every_bit(clusters: Callable[..., Cluster], name: str) -> None:
    n = 4
    found = torch.stack(clusters(n).run(_mixed, name))
    product = torch.eye(n, dtype=torch.float64)
    for step in range(ROUNDS):
        product = TOPOLOGIES[name](n, step) @ product
    assert torch.equal(found, product @ torch.stack([whole_numbers(rank) for rank in range(n)]))
    if name == "ring":
        assert torch.equal(product, torch.linalg.matrix_power(topology.ring(n), ROUNDS))


@pytest.mark.parametrize("name", ["ring", "exponential", "random pairs"])
def test_the_measured_distance_stays_below_the_bound(clusters: Callable[..., Cluster], name: str) -> None:
    curve = measure(clusters(4), TOPOLOGIES[name], ROUNDS)
    assert all(found <= most + 1e-12 for found, most in zip(curve.distances, curve.bounds, strict=True))
    assert curve.distances[-1] < 0.5


def test_the_second_eigenvalue_of_a_ring_is_a_cosine() -> None:
    for n in (3, 5, 8):
        matrix = topology.ring(n)
        eigenvalues = sorted(np.abs(np.linalg.eigvalsh(matrix.numpy())))
        assert topology.second(matrix) == pytest.approx(eigenvalues[-2], rel=1e-12)
        assert topology.second(matrix) == pytest.approx(0.5 + 0.5 * np.cos(2 * np.pi / n), rel=1e-12)


def test_one_peer_is_exact_after_log2_rounds() -> None:
    product = torch.eye(8, dtype=torch.float64)
    for step in range(3):
        product = topology.one_peer(8, step) @ product
    assert torch.equal(product, topology.complete(8))


def test_exponential_needs_fewer_rounds_than_torus_than_ring() -> None:
    ring, torus, exponential = (
        topology.second(each(64)) for each in (topology.ring, topology.torus, topology.exponential)
    )
    assert exponential < torus < ring


@pytest.mark.parametrize("name", ["ring", "complete"])
def test_decentralized_sgd_equals_the_plain_algorithm(clusters: Callable[..., Cluster], name: str) -> None:
    problem, n, steps, rate = LeastSquares.drawn(size=5, examples=40), 4, 12, 0.1
    x = torch.zeros(n, problem.size, dtype=torch.float64)
    for step in range(steps):
        x = plain_unscheduled.gossip(x, TOPOLOGIES[name](n, step), partial(of_part, problem, n), rate)
    found = train(clusters(n), TOPOLOGIES[name], problem, steps, rate)
    torch.testing.assert_close(found, x, rtol=1e-12, atol=1e-12)
    assert problem.loss(found.mean(0)) < problem.loss(torch.zeros(problem.size).double()) / 2


def of_part(problem: LeastSquares, n: int, rank: int, weights: torch.Tensor) -> torch.Tensor:
    return problem.of_part(rank, n, weights)


def test_the_mean_of_all_ranks_takes_the_mean_of_their_steps() -> None:
    """Mixing keeps it, whatever the topology."""
    problem, n = LeastSquares.drawn(size=5, examples=40), 4
    x = torch.randn(n, 5, dtype=torch.float64)
    mean = x.mean(0)
    for step in range(5):
        gradients = torch.stack([problem.of_part(rank, n, x[rank]) for rank in range(n)])
        mean = mean - 0.1 * gradients.mean(0)
        x = plain_unscheduled.gossip(x, topology.ring(n, step), lambda rank, own: problem.of_part(rank, n, own), 0.1)
        torch.testing.assert_close(x.mean(0), mean, rtol=1e-12, atol=1e-12)


def _again() -> tuple[torch.Tensor, torch.Tensor, str]:
    communicator = over(dist.group.WORLD)
    whole, parts = (whole_numbers(dist.get_rank()) for _ in range(2))
    gossip, first, second = (Gossip(communicator, topology.random_pairs) for _ in range(3))
    for _ in range(4):
        gossip.mix(whole)
    first.mix(parts)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.mix(parts)
    try:
        second.load_state_dict({"rounds": 1, "ranks": 5})
    except BadInput as refused:
        return whole, parts, str(refused)


def test_rounds_continue_with_the_next_partners(clusters: Callable[..., Cluster]) -> None:
    for whole, parts, refused in clusters(4).run(_again):
        assert torch.equal(whole, parts)
        assert "5 ranks had weights of their own, and here are 4" in refused


def test_a_matrix_that_does_not_keep_the_mean_is_refused() -> None:
    with pytest.raises(BadInput, match="each row and each column"):
        topology.check(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    with pytest.raises(BadInput, match="0 or more"):
        topology.check(torch.tensor([[1.5, -0.5], [-0.5, 1.5]]))
