"""Classes as clouds of points, dealt to clients unevenly: where federated methods differ, on a problem of a second."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.collectives.default import over

from ..clients import Examples, dirichlet
from ..federated import FederatedRules, Federation, ServerStep
from ..secure_sum import MaskedSum

CLASSES, FEATURES = 10, 12


@dataclass(frozen=True)
class SkewedProblem:
    """A federated training.

    Attributes:
        rules: by which clients and server learn.
        rounds: that there are.
        clients: that share the examples.
        alpha: how even classes are over clients.
        norm: whether the model has batch norm.
        server: makes the server's step; the mean by default.
        secure: whether clients mask what they say.
    """

    rules: FederatedRules
    rounds: int = 30
    clients: int = 20
    alpha: float = 0.1
    norm: bool = False
    server: Callable[[], ServerStep] | None = None
    secure: bool = False


def cloud(examples: int, seed: int) -> Examples:
    """Points around the middle of their class, in float64."""
    middles = 1.5 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed + 1)
    labels = torch.randint(CLASSES, (examples,), generator=generator)
    noise = torch.randn(examples, FEATURES, generator=generator, dtype=torch.float64)
    return Examples(middles[labels] + 1.5 * noise, labels)


def network(norm: bool) -> nn.Module:
    """Two layers, from the same seed on every rank."""
    torch.manual_seed(0)
    between = [nn.BatchNorm1d(24)] if norm else []
    return nn.Sequential(nn.Linear(FEATURES, 24), *between, nn.ReLU(), nn.Linear(24, CLASSES)).double()


def federation(problem: SkewedProblem) -> Federation:
    """On a rank: with every n-th client."""
    communicator, examples = over(dist.group.WORLD), cloud(2000, seed=0)
    parts = dirichlet(examples.labels, problem.clients, problem.alpha)
    numbers = range(communicator.rank(), problem.clients, communicator.size())
    own = {client: Examples(*(x[parts[client]] for x in examples)) for client in numbers}
    aggregate = MaskedSum(communicator, numbers, problem.clients) if problem.secure else None
    server = problem.server() if problem.server else None
    return Federation(communicator, network(problem.norm), own, problem.clients, problem.rules, server, aggregate)


def trained(problem: SkewedProblem) -> tuple[Tensor, dict[str, Tensor], float]:
    """On a rank: train. Returns the weights, the buffers, and the part of new examples that are told rightly."""
    one = federation(problem)
    for _ in range(problem.rounds):
        one.round()
    return one.weights, one.buffers, accuracy(one.load())


def accuracies(problem: SkewedProblem) -> list[float]:
    """On a rank: train. Returns the accuracy before the first round and after each."""
    one = federation(problem)
    found = [accuracy(one.load())]
    for _ in range(problem.rounds):
        one.round()
        found.append(accuracy(one.load()))
    return found


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Of new examples of all classes."""
    features, labels = cloud(2000, seed=1)
    return float((model.eval()(features).argmax(1) == labels).double().mean())


def with_rules(problem: SkewedProblem, **changes: object) -> SkewedProblem:
    """The same problem by other rules."""
    return replace(problem, rules=replace(problem.rules, **changes))
