"""Training among ranks that lie: `python -m reference.decentralized.lab.liars` compares rules and attacks."""

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.default import over

from ..robust import ATTACKS, RULES, Attack, Robust, combine
from .least_squares import LeastSquares

PRELOAD = ("reference.decentralized.lab.liars",)


def train(
    cluster: Cluster, rule: Robust, attack: Attack | None, problem: LeastSquares, liars: int, steps: int, rate: float
) -> Tensor:
    """The weights [N] after SGD in which the first `liars` ranks say what `attack` tells them."""
    return cluster.run(_trained, rule, attack, problem, liars, steps, rate)[0]


def _trained(rule: Robust, attack: Attack | None, problem: LeastSquares, liars: int, steps: int, rate: float) -> Tensor:
    communicator, weights = over(dist.group.WORLD), torch.zeros(problem.size, dtype=torch.float64)
    rank, n = communicator.rank(), communicator.size()
    for step in range(steps):
        own = problem.gradient(rank, step, weights)
        if attack and rank < liars:  # they know what all others would say
            own = attack(torch.stack([problem.gradient(each, step, weights) for each in range(n)]), liars)
        weights = weights - rate * combine(rule, own, liars, communicator)
    return weights


def main() -> None:
    """Print the loss after a training, for each rule and attack."""
    ranks, liars, problem = 9, 2, LeastSquares.drawn(size=20, examples=1000, batch=16)
    print(f"{liars} of {ranks} ranks lie; loss after 100 steps, from {problem.loss(torch.zeros(20).double()):.3f}\n")
    attacks = {"no attack": None, **ATTACKS}
    print(f"{'':14}" + "".join(f"{name:>14}" for name in attacks))
    with Cluster(ranks, preload=PRELOAD) as cluster:
        for name, rule in RULES.items():
            losses = [problem.loss(train(cluster, rule, each, problem, liars, 100, 0.1)) for each in attacks.values()]
            print(f"{name:14}" + "".join(f"{loss:14.4g}" for loss in losses))


if __name__ == "__main__":
    main()
