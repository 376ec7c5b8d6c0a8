"""How fast ranks agree, by topology: `python -m reference.decentralized.lab.consensus` compares it with the bound."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.default import over

from ..gossip import Gossip
from ..topology import TOPOLOGIES, Topology, bound, distance
from .least_squares import LeastSquares

PRELOAD = ("reference.decentralized.lab.consensus",)


@dataclass(frozen=True)
class ConsensusCurve:
    """Rounds by one topology.

    Attributes:
        distances: from the mean before the first round and after each, as parts of the first.
        bounds: what they can be at most.
    """

    distances: Sequence[float]
    bounds: Sequence[float]


def measure(cluster: Cluster, topology: Topology, rounds: int, size: int = 8) -> ConsensusCurve:
    """Let the ranks of a cluster average values that begin at random."""
    told = cluster.run(_values, topology, rounds, size)
    distances = [distance(torch.stack(x)) for x in zip(*told, strict=True)]
    relative = [each / distances[0] for each in distances]
    return ConsensusCurve(relative, bound(topology, cluster.world_size, rounds))


def _values(topology: Topology, rounds: int, size: int) -> list[Tensor]:
    """This rank's value before the first round and after each."""
    x = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(dist.get_rank()))
    gossip, found = Gossip(over(dist.group.WORLD), topology), [x.clone()]
    for _ in range(rounds):
        gossip.mix(x)
        found.append(x.clone())
    return found


def train(cluster: Cluster, topology: Topology, problem: LeastSquares, steps: int, rate: float) -> Tensor:
    """Decentralized SGD; each rank has a part of the examples. Returns the weights of all ranks, [n, N]."""
    return torch.stack(cluster.run(_trained, topology, problem, steps, rate))


def _trained(topology: Topology, problem: LeastSquares, steps: int, rate: float) -> Tensor:
    weights = torch.zeros(problem.size, dtype=torch.float64)
    gossip = Gossip(over(dist.group.WORLD), topology)
    for _ in range(steps):
        gossip.step(weights, problem.of_part(dist.get_rank(), dist.get_world_size(), weights), rate)
    return weights


def main() -> None:
    """Print a row for each topology: the distance after some rounds, its bound, and what a training comes to."""
    ranks, rounds = 8, 6
    problem = LeastSquares.drawn(size=20, examples=160)
    print(f"{ranks} ranks; the best loss is {problem.best:.5f}\n")
    head = f"distance after {rounds} rounds"
    print(f"{'':14}{head:>26}{'at most':>10}{'loss after 100 steps':>23}{'apart by':>12}")
    with Cluster(ranks, preload=PRELOAD) as cluster:
        for name, topology in TOPOLOGIES.items():
            curve = measure(cluster, topology, rounds)
            weights = train(cluster, topology, problem, 100, 0.1)
            loss, apart = problem.loss(weights.mean(0)), distance(weights)
            print(f"{name:14}{curve.distances[-1]:26.2e}{curve.bounds[-1]:10.2e}{loss:23.5f}{apart:12.2e}")


if __name__ == "__main__":
    main()
