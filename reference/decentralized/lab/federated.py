"""Federated methods side by side: `python -m reference.decentralized.lab.federated` prints what each comes to.

Twenty clients on four ranks; a quarter takes part in each round. Data are even, or skewed so that a client has a class
or two. What is printed is the accuracy on new examples of all classes, after 24 rounds of three epochs.
"""

from functools import partial

from reference.cluster import Cluster

from ..federated import Buffers, ClientRule, FedAdam, FederatedRules
from ..privacy import Privacy, epsilon
from .skewed import SkewedProblem, trained, with_rules

PRELOAD = ("reference.decentralized.lab.federated",)
PROBLEM = SkewedProblem(FederatedRules(per_round=5, epochs=3, rate=0.1), rounds=24)
METHODS = {
    "FedAvg": PROBLEM,
    "FedProx, mu = 0.1": with_rules(PROBLEM, rule=ClientRule.PROXIMAL, proximal=0.1),
    "SCAFFOLD": with_rules(PROBLEM, rule=ClientRule.SCAFFOLD),
    "FedAdam": SkewedProblem(PROBLEM.rules, PROBLEM.rounds, server=partial(FedAdam, 0.03)),
    "FedAvg, masked sums": SkewedProblem(PROBLEM.rules, PROBLEM.rounds, secure=True),
}
ALPHAS = (100.0, 0.1)
NOISES, DELTA = (0.0, 0.5, 1.0, 2.0), 1e-3


def accuracy(cluster: Cluster, problem: SkewedProblem) -> float:
    """After training on the ranks of a cluster."""
    return cluster.run(trained, problem)[0][-1]


def main() -> None:
    """Print three tables: methods, buffers of batch norm, and noise."""
    with Cluster(4, preload=PRELOAD) as cluster:
        print(f"{'accuracy':22}{'even (alpha 100)':>18}{'skewed (alpha 0.1)':>20}")
        for name, problem in METHODS.items():
            found = [accuracy(cluster, _skewed(problem, alpha)) for alpha in ALPHAS]
            print(f"{name:22}{found[0]:18.3f}{found[1]:20.3f}")
        print("\nFedAvg of a model with batch norm, by what becomes of its statistics")
        for buffers in (Buffers.POOLED, Buffers.AVERAGED):
            problem = SkewedProblem(PROBLEM.rules, PROBLEM.rounds, norm=True)
            found = [accuracy(cluster, _skewed(with_rules(problem, buffers=buffers), alpha)) for alpha in ALPHAS]
            print(f"{buffers:22}{found[0]:18.3f}{found[1]:20.3f}")
        print(f"\nFedAvg, even data, changes clipped to 0.5: noise of each round, and what {PROBLEM.rounds} give away")
        print(f"{'noise':22}{'accuracy':>18}{'epsilon':>20}   (delta {DELTA:g})")
        for noise in NOISES:
            problem = with_rules(PROBLEM, privacy=Privacy(0.5, noise))
            spent = epsilon(PROBLEM.rules.per_round / PROBLEM.clients, noise, PROBLEM.rounds, DELTA)
            print(f"{noise:<22g}{accuracy(cluster, _skewed(problem, ALPHAS[0])):18.3f}{spent:20.2f}")


def _skewed(problem: SkewedProblem, alpha: float) -> SkewedProblem:
    return SkewedProblem(**{**vars(problem), "alpha": alpha})


if __name__ == "__main__":
    main()
