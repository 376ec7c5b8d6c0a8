"""Federated rounds are those of one process, whatever ranks the clients are on; sums are secret and exact."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.decentralized import plain_unscheduled
from reference.decentralized.clients import Examples, chosen, dirichlet, volunteers
from reference.decentralized.federated import Buffers, ClientRule, FedAdam, FederatedRules, Federation
from reference.decentralized.lab.skewed import SkewedProblem, cloud, federation, network, trained, with_rules
from reference.decentralized.privacy import Privacy, clipped, divergence, epsilon
from reference.decentralized.secure_sum import MaskedSum, prime
from reference.errors import BadInput

PROBLEM = SkewedProblem(FederatedRules(per_round=3, batch=64), rounds=3, clients=5, alpha=0.5)
WAYS = {
    "FedAvg": with_rules(PROBLEM, epochs=2),
    "FedProx": with_rules(PROBLEM, rule=ClientRule.PROXIMAL, proximal=0.5),
    "SCAFFOLD": with_rules(PROBLEM, rule=ClientRule.SCAFFOLD),
    "FedAdam": replace(PROBLEM, server=partial(FedAdam, 0.01)),
    "pooled batch norm": replace(PROBLEM, norm=True),
    "own batch norm": with_rules(replace(PROBLEM, norm=True), buffers=Buffers.OWN),
}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize("name", WAYS)
def test_it_does_not_matter_on_which_ranks_clients_are(clusters: Callable[..., Cluster], name: str) -> None:
    (one,), several = clusters(1).run(trained, WAYS[name]), clusters(3).run(trained, WAYS[name])
    for weights, buffers, _ in several:
        torch.testing.assert_close(weights, one[0], **EXACT)
        torch.testing.assert_close(buffers, one[1], **EXACT)
        assert torch.equal(weights, several[0][0]), "all ranks have made the same step"


def parts(problem: SkewedProblem) -> list[Examples]:
    examples = cloud(2000, seed=0)
    dealt = dirichlet(examples.labels, problem.clients, problem.alpha)
    return [Examples(*(x[rows] for x in examples)) for rows in dealt]


def whole_batch(client: int, weights: torch.Tensor, of: list[Examples], rate: float) -> torch.Tensor:
    """A step of one client with all of its examples."""
    model = network(norm=False)
    vector_to_parameters(weights, model.parameters())
    features, labels = of[client]
    gradient = torch.autograd.grad(F.cross_entropy(model(features), labels), [*model.parameters()])
    return weights - rate * parameters_to_vector(gradient)


@pytest.mark.parametrize("rule", [ClientRule.SGD, ClientRule.SCAFFOLD])
def test_one_step_of_all_clients_is_the_plain_algorithm_and_sgd(clusters: Callable[..., Cluster], rule: str) -> None:
    """Weighted by examples: a step with the gradient of all of them. Controls make no difference where all begin."""
    of = parts(PROBLEM)
    problem = with_rules(PROBLEM, per_round=5, batch=10_000, rule=rule)
    weights = everything = parameters_to_vector(network(norm=False).parameters()).detach()
    for _ in range(problem.rounds):
        train = partial(whole_batch, of=of, rate=0.1)
        weights = plain_unscheduled.federated(weights, train, [len(each.labels) for each in of])
        everything = whole_batch(0, everything, [Examples(*map(torch.cat, zip(*of, strict=True)))], 0.1)
    found = clusters(3).run(trained, problem)[0][0]
    torch.testing.assert_close(found, weights, **EXACT)
    torch.testing.assert_close(found, everything, **EXACT)


def test_fedprox_pulls_back_and_adam_steps_by_its_rate() -> None:
    with pytest.raises(BadInput, match="mu is FedProx's"):
        with_rules(PROBLEM, proximal=0.1)
    weights, server = torch.zeros(3).double(), FedAdam(rate=0.1, floor=1e-3)
    change = torch.tensor([1.0, -2.0, 0.0]).double()
    server.step(weights, change)
    expected = 0.1 * (0.1 * change) / ((0.99 * 1e-6 + 0.01 * change**2).sqrt() + 1e-3)
    torch.testing.assert_close(weights, expected, rtol=1e-14, atol=0)


def _statistics(buffers: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
    one = federation(with_rules(replace(PROBLEM, norm=True), per_round=5, buffers=buffers))
    layer = one.model[1]
    layer.momentum = 1.0  # of the last batch, which is all examples of a client
    one.rules = replace(one.rules, batch=10_000)
    one.round()
    return one.load()[1].running_mean.clone(), layer.running_var.clone()


def test_pooled_statistics_are_those_of_all_examples(clusters: Callable[..., Cluster]) -> None:
    """And averaged variances are not: where data are skewed, they miss by how means differ."""
    inputs = network(norm=True)[0](torch.cat([each.features for each in parts(PROBLEM)])).detach()
    mean, variance = clusters(3).run(_statistics, Buffers.POOLED)[0]
    torch.testing.assert_close(mean, inputs.mean(0), **EXACT)
    torch.testing.assert_close(variance, inputs.var(0), rtol=0.01, atol=0)  # each client divides by m - 1
    _, averaged = clusters(3).run(_statistics, Buffers.AVERAGED)[0]
    assert (averaged < variance).all()
    assert (variance / averaged).max() > 1.2


def _resumed(problem: SkewedProblem) -> tuple[object, ...]:
    """Of 2 rounds, and one more from the states of all ranks; and of 3 rounds."""
    whole, first, second = (federation(problem) for _ in range(3))
    for _ in range(3):
        whole.round()
    first.round(), first.round()
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, first.state_dict())
    clients = {number: kept for state in states for number, kept in state["clients"].items()}
    second.load_state_dict(states[0] | {"clients": clients})
    second.round()
    return torch.equal(whole.weights, second.weights), whole.rounds == second.rounds, states[0] | {"clients": clients}


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedAdam", "own batch norm"])
def test_rounds_continue_on_any_number_of_ranks(clusters: Callable[..., Cluster], name: str) -> None:
    *same, state = clusters(3).run(_resumed, WAYS[name])[0]
    assert all(same)

    def further() -> torch.Tensor:
        other = federation(WAYS[name])
        other.load_state_dict(state)
        other.round()
        return other.weights

    whole = clusters(1).run(trained, WAYS[name])[0][0]
    torch.testing.assert_close(clusters(1).run(further)[0], whole, **EXACT)


def test_parts_are_skewed_where_alpha_is_small() -> None:
    labels = cloud(2000, seed=0).labels
    even, skewed = (dirichlet(labels, 10, alpha) for alpha in (100.0, 0.1))
    for dealt in (even, skewed):
        assert torch.cat(dealt).sort().values.tolist() == [*range(2000)], "each example has one client"

    def largest(dealt: list[torch.Tensor]) -> float:
        return sum(float(labels[rows].bincount().max()) for rows in dealt) / 2000

    assert largest(even) < 0.2
    assert largest(skewed) > 0.4
    assert len(set(map(len, skewed))) > 5
    with pytest.raises(BadInput, match="too few for 10 clients"):
        dirichlet(labels[:39], 10, 1.0)
    assert len(set(chosen(20, 5, 3))) == 5
    assert chosen(20, 5, 3) == chosen(20, 5, 3) != chosen(20, 5, 4)
    for draw in (partial(chosen, 20, 5), partial(volunteers, 20, 0.5)):
        assert draw(3, 2**63 - 1) != draw(4, 2**63 - 1), "a seed has up to 64 bits"


@pytest.mark.parametrize(
    ("alpha", "reason"),
    [(1e-3, "1000 times in a row: take a larger one"), (inf, "above 0, and finite"), (0.0, "above 0")],
)
def test_classes_that_cannot_be_dealt_so_are_refused(alpha: float, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        dirichlet(torch.arange(200) % 2, 10, alpha)


def _frozen() -> tuple[torch.Tensor, ...]:
    """The first layer after two rounds in which it was frozen, as it was, and a weight of the last one."""
    one = federation(PROBLEM)
    before = one.model[0].weight.detach().clone()
    one.model[0].requires_grad_(False)
    again = Federation(one.communicator, one.model, one.own, one.clients, one.rules)
    again.round(), again.round()
    return before, again.load()[0].weight, again.model[-1].weight.detach(), network(norm=False)[-1].weight.detach()


def test_frozen_parameters_stay_and_the_others_learn(clusters: Callable[..., Cluster]) -> None:
    for before, after, learned, began in clusters(3).run(_frozen):
        assert torch.equal(before, after)
        assert not torch.equal(learned, began)


def _secret(gone: list[int], round_of: list[int]) -> tuple[torch.Tensor, ...]:
    """Sums of five clients' numbers, of whom some are gone."""
    communicator = over(dist.group.WORLD)
    own = range(communicator.rank(), 5, communicator.size())
    masked = MaskedSum(communicator, own, 5)
    said = {client: values(client) for client in own if client in round_of and client not in gone}
    first = masked.sum(said, torch.zeros(9).double(), round_of)
    hidden = {client: masked.hide(client, values(client), round_of) for client in own if client in round_of}
    return first, masked.sum(said, torch.zeros(9).double(), round_of), hidden


def values(client: int) -> torch.Tensor:
    return torch.randn(9, generator=torch.Generator().manual_seed(client)).double() * 100


@pytest.mark.parametrize("gone", [[], [1], [0, 4]])
def test_masks_cancel_exactly_also_of_a_client_that_is_gone(clusters: Callable[..., Cluster], gone: list[int]) -> None:
    told = clusters(3).run(_secret, gone, [0, 1, 2, 4])
    left = [client for client in (0, 1, 2, 4) if client not in gone]
    exact = sum((values(client) * 2**24).round() for client in left) / 2**24
    for first, second, _ in told:
        assert torch.equal(first, exact)
        assert torch.equal(second, exact), "a second round has other masks"


def test_what_a_client_says_tells_nothing(clusters: Callable[..., Cluster]) -> None:
    """It is a number below 2^48, about which its own value says nothing; and each round another one."""
    hidden = [said for *_, of_rank in clusters(3).run(_secret, [], [0, 1, 2, 4]) for said in of_rank.values()]
    again = [said for *_, of_rank in clusters(3).run(_secret, [], [0, 1, 2, 4]) for said in of_rank.values()]
    assert len(hidden) == 4
    for said, other in zip(hidden, again, strict=True):
        assert ((said >= 0) & (said < 2**48)).all()
        assert said.double().std() > 2**48 / 8, "as of uniform numbers: 2^48 / sqrt(12)"
        assert not (said == other).any()


def test_keys_are_agreed_on_in_a_group_of_a_prime() -> None:
    """Fermat's test for p and for (p - 1) / 2; a composite number passes it with hardly any base."""
    for candidate in (prime(), prime() // 2):
        assert all(pow(base, candidate - 1, candidate) == 1 for base in (3, 5))
    assert prime().bit_length() == 2048


def _refused() -> list[str]:
    communicator = over(dist.group.WORLD)
    found = []
    for attempt in (
        lambda: MaskedSum(communicator, [0], 1).sum({0: torch.tensor([2.0**30])}, torch.zeros(1), [0]),
        lambda: MaskedSum(communicator, [0], 1, bits=63),
        lambda: Federation(communicator, network(True), {}, 1, FederatedRules(per_round=1, privacy=Privacy(1.0, 1.0))),
        lambda: Federation(communicator, network(False), {}, 3, FederatedRules(per_round=4)),
    ):
        try:
            attempt()
        except BadInput as refused:
            found.append(str(refused))
    return found


def test_what_cannot_be_added_or_hidden_is_refused(clusters: Callable[..., Cluster]) -> None:
    large, bits, norm, many = clusters(1).run(_refused)[0]
    assert "clip it, or give more bits" in large
    assert "do not hold sums" in bits
    assert "statistics of batch norm" in norm
    assert many == "4 clients cannot take part in a round: there are 3"
    for options in ({"per_round": 0}, {"per_round": 1, "epochs": 0}, {"per_round": 1, "batch": 0}):
        with pytest.raises(BadInput, match="at least 1, not 0"):
            FederatedRules(**options)
    with pytest.raises(BadInput, match="SCAFFOLD's controls"):
        FederatedRules(per_round=1, rule=ClientRule.SCAFFOLD, privacy=Privacy(1.0, 1.0))


@pytest.mark.parametrize(
    ("part", "noise", "rounds", "delta", "library"),
    [
        (0.01, 1.1, 1000, 1e-5, 1.7252908180449444),
        (0.1, 1.0, 100, 1e-5, 7.972921510380539),
        (0.5, 2.0, 40, 1e-4, 8.051326667850802),
        (1.0, 4.0, 10, 1e-5, 3.6278518728252274),
    ],
)
def test_epsilon_is_that_of_dp_accounting(part: float, noise: float, rounds: int, delta: float, library: float) -> None:
    """`RdpAccountant(orders=range(2, 257))` of dp-accounting 0.6.0, of as many Poisson-sampled Gaussian sums."""
    assert epsilon(part, noise, rounds, delta) == pytest.approx(library, rel=1e-12)


def test_more_noise_gives_less_away() -> None:
    assert epsilon(0.1, 0.0, 1, 1e-5) == inf
    assert epsilon(0.1, 2.0, 10, 1e-5) < epsilon(0.1, 1.0, 10, 1e-5) < epsilon(0.2, 1.0, 10, 1e-5)
    assert divergence(1 - 1e-12, 2.0, 7) == pytest.approx(divergence(1.0, 2.0, 7), rel=1e-6)
    torch.testing.assert_close(clipped(torch.tensor([3.0, 4.0]), 1.0), torch.tensor([0.6, 0.8]))
    assert torch.equal(clipped(torch.tensor([0.3, 0.4]), 1.0), torch.tensor([0.3, 0.4]))
    for lost in (float("nan"), float("inf")):  # of a client that has diverged
        assert torch.equal(clipped(torch.tensor([lost, 0.4]), 1.0), torch.zeros(2))
    counts = [len(volunteers(50, 0.2, number)) for number in range(100)]
    assert sum(counts) / 100 == pytest.approx(10, abs=1)
    assert len(set(counts)) > 5


def test_noise_has_the_length_that_was_asked_for(clusters: Callable[..., Cluster]) -> None:
    """Of no change at all, a private round leaves noise of deviation z C / (clients in the mean)."""
    problem = with_rules(PROBLEM, per_round=2, rate=1e-12, privacy=Privacy(0.5, 3.0))
    begin = parameters_to_vector(network(norm=False).parameters()).detach()
    told = clusters(3).run(trained, replace(problem, rounds=1))
    assert float((told[0][0] - begin).std()) == pytest.approx(3.0 * 0.5 / 2, rel=0.1)
    assert torch.equal(told[0][0], told[2][0])
