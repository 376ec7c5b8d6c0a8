"""Islands as clients of a federated training: FedAdam, FedProx and SCAFFOLD are those of one process, in any plan."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from reference.choices import IslandText, Optimizer, Outer
from reference.cluster import Cluster
from reference.config import TrainConfig, learning_rate
from reference.decentralized.clients import chosen
from reference.errors import BadInput
from reference.islands import TAKEN_BY
from reference.memory.precision import PRECISIONS
from reference.models import token_loss
from reference.models.data import OwnBatches
from reference.parallelize import DataParallelism, Plan
from reference.train import batches_for, require_fit

from .one_process import (
    ENDS,
    EXACT,
    Correct,
    Meet,
    Models,
    OuterSGD,
    all_take,
    alone,
    config_of,
    far_apart,
    initial,
    means,
    named,
    on_ranks,
)
from .test_islands import CLOSE

Clusters = Callable[..., Cluster]
Parameters = dict[str, Tensor]
PLANS = {
    "fsdp": Plan(DataParallelism.FSDP),
    "tensor": Plan(tensor_parallel=2),
    "ddp": Plan(DataParallelism.DDP),
}


def of(model: nn.Module) -> Parameters:
    """A copy of the parameters."""
    return {name: p.detach().clone() for name, p in named(model).items()}


class Clients:
    """A method as its paper has it: what becomes of a gradient, and of a round.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.anchor = config, of(initial(config))
        self.drawn: list[list[int]] = []

    def correct(self, island: int, model: nn.Module) -> None:
        pass

    def meet(self, taken: int, models: Models) -> None:
        if taken in ENDS:
            self.taken = taken
            drawn = self.draw(self.config.islands)
            self.drawn.append(drawn)
            self.end_round(models, drawn)
            all_take(models, self.anchor)

    def draw(self, n: int) -> list[int]:
        return chosen(n, round(self.config.meets.taking_part * n), self.taken, self.config.seed)

    def now(self, models: Models, drawn: list[int]) -> Parameters:
        """Where those that count are, in the mean."""
        return means([models[island] for island in drawn])

    def end_round(self, models: Models, drawn: list[int]) -> None:
        self.anchor = self.now(models, drawn)


class Momentum(Clients):
    """DiLoCo."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.outer = OuterSGD(initial(config), 0.7, 0.9)

    def end_round(self, models: Models, drawn: list[int]) -> None:
        now = self.now(models, drawn)
        self.anchor = {name: self.outer.step(name, self.anchor[name] - x).clone() for name, x in now.items()}


class FedAdam(Clients):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.mean = {name: torch.zeros_like(x) for name, x in self.anchor.items()}
        self.square = {name: torch.full_like(x, 1e-6) for name, x in self.anchor.items()}

    def end_round(self, models: Models, drawn: list[int]) -> None:
        for name, now in self.now(models, drawn).items():
            change = now - self.anchor[name]
            self.mean[name] = 0.9 * self.mean[name] + 0.1 * change
            self.square[name] = 0.99 * self.square[name] + 0.01 * change**2
            self.anchor[name] += self.config.meets.outer_rate * self.mean[name] / (self.square[name].sqrt() + 1e-3)


class FedProx(Clients):
    def correct(self, island: int, model: nn.Module) -> None:
        for name, parameter in named(model).items():
            parameter.grad += self.config.meets.proximal * (parameter - self.anchor[name])


class Scaffold(Clients):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        zeros = {name: torch.zeros_like(x) for name, x in self.anchor.items()}
        self.of_all, self.own = zeros, [zeros] * config.islands
        self.seen: list[list[Parameters]] = [[] for _ in self.own]

    def correct(self, island: int, model: nn.Module) -> None:
        self.seen[island].append({name: p.grad.clone() for name, p in named(model).items()})
        for name, parameter in named(model).items():
            parameter.grad += self.of_all[name] - self.own[island][name]

    def end_round(self, models: Models, drawn: list[int]) -> None:
        super().end_round(models, drawn)
        for island in drawn:
            seen = self.seen[island]
            self.own[island] = {name: torch.stack([each[name] for each in seen]).mean(0) for name in seen[0]}
        self.of_all = {name: sum(each[name] for each in self.own) / len(self.own) for name in self.of_all}
        self.seen = [[] for _ in self.own]


METHODS = {Outer.FEDADAM: (FedAdam, {}), Outer.FEDPROX: (FedProx, {"proximal": 2.0}), Outer.SCAFFOLD: (Scaffold, {})}


def hold(
    cluster: Cluster,
    config: TrainConfig,
    meet: Meet,
    correct: Correct,
    plan: Plan,
    make: Callable = torch.optim.AdamW,
) -> None:
    """Every rank has the parameters of its island in one process."""
    models = alone(config, meet, make, correct)
    found = cluster.run(on_ranks, config, plan)
    for rank, (parameters, _) in enumerate(found):
        assert far_apart(parameters, models[rank * config.islands // len(found)]) < CLOSE


@pytest.mark.parametrize("outer", METHODS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_islands_of_any_plan_are_clients(four: Cluster, outer: Outer, plan: Plan) -> None:
    make, options = METHODS[outer]
    config = config_of(outer, **options)
    clients = make(config)
    hold(four, config, clients.meet, clients.correct, plan)


@pytest.mark.parametrize("outer", TAKEN_BY["taking_part"])
def test_a_part_of_the_islands_counts_in_a_round(four: Cluster, outer: Outer) -> None:
    """The others send zeros, and begin the next round where all do."""
    make, options = {**METHODS, Outer.LOCAL_SGD: (Clients, {}), Outer.DILOCO: (Momentum, {})}[outer]
    config = config_of(outer, 4, taking_part=0.5, **options)
    clients = make(config)
    hold(four, config, clients.meet, clients.correct, Plan())
    assert [len(each) for each in clients.drawn] == [2, 2, 2] and len({*map(tuple, clients.drawn)}) > 1


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_one_of_two_islands_counts_in_a_round(four: Cluster, plan: Plan) -> None:
    config = config_of(Outer.FEDADAM, taking_part=0.5)
    clients = FedAdam(config)
    hold(four, config, clients.meet, clients.correct, plan)


@pytest.mark.parametrize("outer", [Outer.LOCAL_SGD, Outer.SCAFFOLD])
@pytest.mark.parametrize("plan", [Plan(DataParallelism.FSDP), Plan(tensor_parallel=2)], ids=["fsdp", "tensor"])
def test_clients_with_data_of_their_own(four: Cluster, outer: Outer, plan: Plan) -> None:
    config = config_of(outer, island_text=IslandText.OWN)
    clients = METHODS.get(outer, (Clients,))[0](config)
    hold(four, config, clients.meet, clients.correct, plan)


def test_parts_of_the_text_are_contiguous_and_together_they_are_what_is_trained_on(short_text: Path) -> None:
    whole = batches_for(replace(EXACT, data=str(short_text)), 1)
    parts = [OwnBatches(whole, island, 4) for island in range(4)]
    assert [window for each in parts for window in each.part] == list(range(whole.windows))
    assert max(len(each.part) for each in parts) - min(len(each.part) for each in parts) <= 1
    for each in parts:
        places = {bytes(whole.text[w * 16 : w * 16 + 16]) for w in each.part}
        for step in range(2 * len(each.part) // 2):
            tokens = torch.cat([each.of_step(step, rank, 2)[0] for rank in range(2)])
            assert torch.equal(tokens, each.of_step(step)[0]) and len(tokens) == 2
            assert all(bytes(row.to(torch.uint8).tolist()) in places for row in tokens)
            seeds = torch.cat([each.dropout_seeds(step, rank, 2) for rank in range(2)])
            assert torch.equal(seeds, each.dropout_seeds(step)) and seeds.shape == tokens.shape
        assert torch.equal(each.validation()[0][0], whole.validation()[0][0])


@pytest.mark.parametrize("outer", [Outer.FEDPROX, Outer.SCAFFOLD])
def test_sgd_inside(four: Cluster, outer: Outer) -> None:
    """It sees how long a gradient is: the term is there before it is clipped."""
    make, options = METHODS[outer]
    config = config_of(outer, 4, **options, optimizer=Optimizer.SGD, learning_rate=0.1)
    clients = make(config)
    hold(four, config, clients.meet, clients.correct, Plan(), partial(torch.optim.SGD, weight_decay=0.1))


def test_rounds_begin_after_the_steps_that_share_gradients(four: Cluster) -> None:
    """In those no control is learned and no spring pulls; in the first step after them none does so yet."""
    for outer, (_, options) in METHODS.items():
        together = four.run(on_ranks, config_of(Outer.LOCAL_SGD, synchronous_steps=5), stop=6)
        found = four.run(on_ranks, config_of(outer, synchronous_steps=5, **options), stop=6)
        assert all(far_apart(a, b) == 0 for (a, _), (b, _) in zip(found, together, strict=True))


def test_without_a_spring_fedprox_is_local_sgd(four: Cluster) -> None:
    plan = Plan(DataParallelism.FSDP)
    none, some = config_of(Outer.FEDPROX, proximal=0.0), config_of(Outer.FEDPROX, proximal=1.0)
    mean, free, held = (four.run(on_ranks, each, plan) for each in (config_of(Outer.LOCAL_SGD), none, some))
    for (wanted, losses), (found, its), (other, _) in zip(mean, free, held, strict=True):
        assert far_apart(found, wanted) == 0 and its == losses
        assert far_apart(other, wanted) > 1e-5


def test_the_first_round_of_scaffold_is_local_sgd_and_one_island_never_drifts(
    four: Cluster, clusters: Clusters
) -> None:
    first = [four.run(on_ranks, config_of(outer), stop=3) for outer in (Outer.SCAFFOLD, Outer.LOCAL_SGD)]
    assert all(far_apart(a, b) == 0 for (a, _), (b, _) in zip(*first, strict=True))
    later = [four.run(on_ranks, config_of(outer)) for outer in (Outer.SCAFFOLD, Outer.LOCAL_SGD)]
    assert far_apart(later[0][0][0], later[1][0][0]) > 1e-5
    plain = alone(EXACT, lambda taken, models: None)[0]
    assert far_apart(clusters(1).run(on_ranks, config_of(Outer.SCAFFOLD, 1))[0][0], plain) < CLOSE


def test_with_sgd_controls_are_those_of_option_two(four: Cluster) -> None:
    """Algorithm 1 of the paper, from weights alone: rounds of one step, without clipping and decay."""
    config = config_of(
        Outer.SCAFFOLD,
        4,
        inner_steps=1,
        optimizer=Optimizer.SGD,
        learning_rate=0.1,
        weight_decay=0.0,
        clip=float("inf"),
    )
    batches, model, n = batches_for(config, 4), initial(config), 4
    x = nn.utils.parameters_to_vector(model.parameters()).detach()
    control, controls = torch.zeros_like(x), [torch.zeros_like(x)] * n
    for step in range(config.steps):
        ends, new, rate = [], [], learning_rate(config, step)
        for island in range(n):
            nn.utils.vector_to_parameters(x.clone(), model.parameters())
            tokens, targets = batches.of_step(step, island, n)
            loss = token_loss(model(tokens), targets, batches.tokens // n)
            gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, [*model.parameters()]))
            ends.append(x - rate * (gradient - controls[island] + control))
            new.append(controls[island] - control + (x - ends[-1]) / rate)
        control = control + sum(a - b for a, b in zip(new, controls, strict=True)) / n
        x, controls = sum(ends) / n, new
    nn.utils.vector_to_parameters(x, model.parameters())
    for parameters, _ in four.run(on_ranks, config):
        assert far_apart(parameters, model) < CLOSE


def test_what_makes_no_sense_is_refused() -> None:
    for options, reason in (
        ({"outer": Outer.FEDPROX, "proximal": -1.0}, "mu of fedprox is 0 or more, and finite, not -1.0"),
        ({"outer": Outer.DILOCO, "proximal": 0.1}, "--proximal is of --outer fedprox, not of diloco"),
        ({"outer": Outer.FEDADAM, "outer_momentum": 0.9}, "not of fedadam"),
        ({"outer": Outer.SCAFFOLD, "outer_rate": 0.5}, "not of scaffold"),
        ({"outer": Outer.DILOCO, "outer_rate": math.inf}, "an outer learning rate is positive, and finite, not inf"),
        ({"outer": Outer.DILOCO, "taking_part": 0.0}, "more than 0 and at most 1, not 0.0"),
        ({"outer": Outer.GOSSIP, "taking_part": 0.5}, "--taking-part is of --outer local-sgd, .*, not of gossip"),
    ):
        with pytest.raises(BadInput, match=reason):
            replace(EXACT, islands=2, **options)
    with pytest.raises(BadInput, match="scaffold counts the gradients of each step"):
        require_fit(config_of(Outer.SCAFFOLD, precision=PRECISIONS["fp16"]), Plan(), 2)
