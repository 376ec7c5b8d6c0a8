"""Federated learning: clients train on what they have, examples do not travel, and a server averages.

This is `plain_unscheduled.federated` with: clients on many ranks of whom some take part in a round, three ways to
train on a client and two for the server, and buffers of batch norm treated on purpose.

    client   SGD        as it is; clients with other data drift apart       FedAvg     McMahan 2017, arXiv:1602.05629
             PROXIMAL   a spring of strength mu to where the round began    FedProx    Li 2020, arXiv:1812.06127
             SCAFFOLD   a correction by how the own gradient differs        SCAFFOLD   Karimireddy 2020, 1910.06378
    server   Averaging  the mean, weighted by examples
             FedAdam    the mean change is a gradient for Adam              FedAdam    Reddi 2021, arXiv:2003.00295

There is no rank that is the server: all make the same step with the same sum, and so are spared a broadcast.

| per round and rank | messages     | bytes, N parameters and C channels of batch norm  |
|--------------------|--------------|---------------------------------------------------|
| any but SCAFFOLD   | 1 all-reduce | 8 (N + 1 + 2C)                                    |
| SCAFFOLD           | 1 all-reduce | 8 (2N + 1 + 2C)                                   |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from reference.collectives.communicator import Communicator
from reference.errors import BadInput, require_sizes

from .clients import Examples, chosen, volunteers
from .draws import generator_of
from .privacy import Privacy, clipped

BETAS, FLOOR = (0.9, 0.99), 1e-3  # of FedAdam: beta_1 and beta_2, and tau


class ClientRule(StrEnum):
    """How a client trains."""

    SGD = "sgd"
    PROXIMAL = "proximal"
    SCAFFOLD = "scaffold"


class Buffers(StrEnum):
    """What becomes of the statistics that batch norm has gathered on a client."""

    POOLED = "pooled"  # mean and variance of all clients' examples together
    AVERAGED = "averaged"  # variances averaged: forgets that means differ, which is most of it where data are skewed
    OWN = "own"  # each client keeps its own, and they never travel (SiloBN, Andreux et al. 2020)


class ServerStep(Protocol):
    """What a server makes of the clients' mean change."""

    def step(self, weights: Tensor, change: Tensor) -> None:
        """Update [N] in place."""

    def state_dict(self) -> dict[str, Tensor]:
        """What it must remember."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Remember that."""


class Averaging:
    """Add the mean change."""

    def step(self, weights: Tensor, change: Tensor) -> None:
        weights.add_(change)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass


def adam_step(
    weights: Tensor,
    change: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: float,
    betas: tuple[float, float] = BETAS,
    floor: float = FLOOR,
) -> None:
    """A step of `FedAdam`: all are [N], and all but the change are updated in place."""
    mean.lerp_(change, 1 - betas[0])
    square.lerp_(change.square(), 1 - betas[1])
    weights.add_(mean / (square.sqrt() + floor), alpha=rate)


class FedAdam:
    """Adam on the server, whose gradient is the mean change (Reddi et al. 2021, algorithm 2); no correction of bias.

    Args:
        rate: of the server.
        betas: of the means of changes and of their squares.
        floor: tau: also where squares begin, as tau^2.
    """

    def __init__(self, rate: float, betas: tuple[float, float] = BETAS, floor: float = FLOOR) -> None:
        self.rate, self.betas, self.floor = rate, betas, floor
        self.moments: Tensor | None = None  # [2, N]

    def step(self, weights: Tensor, change: Tensor) -> None:
        if self.moments is None:
            self.moments = torch.stack([torch.zeros_like(weights), torch.full_like(weights, self.floor**2)])
        adam_step(weights, change, *self.moments, self.rate, self.betas, self.floor)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.moments is None else {"moments": self.moments.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.moments = state["moments"].clone() if state else None


class Aggregate(Protocol):
    """Adds up what clients say."""

    def sum(self, said: Mapping[int, Tensor], like: Tensor, taking_part: list[int]) -> Tensor:
        """The sum over all clients of all ranks.

        Args:
            said: by client of this rank that takes part, what it says: [K].
            like: [K], of the shape and dtype of that.
            taking_part: clients of all ranks.
        """


class PlainSum:
    """An all-reduce: the rank that adds sees what others say."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator

    def sum(self, said: Mapping[int, Tensor], like: Tensor, taking_part: list[int]) -> Tensor:
        total = sum(said.values(), torch.zeros_like(like))
        self.communicator.all_reduce(total)
        return total


@dataclass(frozen=True)
class FederatedRules:
    """By which rules clients and server learn.

    Attributes:
        per_round: clients that take part in a round.
        epochs: over its examples that each of them makes.
        batch: examples of a step.
        rate: of its steps.
        rule: how it trains.
        proximal: mu of FedProx.
        buffers: what becomes of those of batch norm.
        privacy: noise and clipping; None for none.
        seed: of who takes part, and of the order of examples.

    Raises:
        BadInput: if the numbers make no sense, or the rules do not go together.
    """

    per_round: int
    epochs: int = 1
    batch: int = 16
    rate: float = 0.1
    rule: ClientRule = ClientRule.SGD
    proximal: float = 0.0
    buffers: Buffers = Buffers.POOLED
    privacy: Privacy | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_sizes(per_round=self.per_round, epochs=self.epochs, batch=self.batch)
        if (self.proximal > 0) != (self.rule is ClientRule.PROXIMAL):
            raise BadInput(
                f"proximal={self.proximal:g} does not go with rule={self.rule}: mu is FedProx's, and above 0"
            )
        if self.privacy and self.rule is ClientRule.SCAFFOLD:
            raise BadInput("SCAFFOLD's controls are gradients of examples, and would travel without noise: take SGD")


@dataclass
class ClientState:
    """What a client keeps from round to round, on its rank."""

    control: Tensor | None = None  # [N], of SCAFFOLD
    buffers: dict[str, Tensor] = field(default_factory=dict)  # its own ones


class Federation:
    """Clients, and what all of them have learned.

    Args:
        communicator: n ranks.
        model: equal on all ranks, with cross-entropy as its loss; its parameters are in float64, or all in float32.
            Frozen ones stay as they are.
        own: the clients of this rank, by number.
        clients: of all ranks, from 0 on.
        rules: the same on all ranks.
        server: what becomes of the mean change.
        aggregate: adds up what clients say.

    Raises:
        BadInput: if a model with batch norm is to be private, or more clients take part than there are.
    """

    def __init__(
        self,
        communicator: Communicator,
        model: nn.Module,
        own: Mapping[int, Examples],
        clients: int,
        rules: FederatedRules,
        server: ServerStep | None = None,
        aggregate: Aggregate | None = None,
    ) -> None:
        if rules.per_round > clients:
            raise BadInput(f"{rules.per_round} clients cannot take part in a round: there are {clients}")
        self.model, self.own, self.clients, self.rules = model, dict(own), clients, rules
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.server, self.aggregate = server or Averaging(), aggregate or PlainSum(communicator)
        self.communicator, self.rounds = communicator, 0
        self.weights = parameters_to_vector(self.parameters).detach().clone()
        self.buffers = {name: x.clone() for name, x in model.named_buffers()}
        if rules.privacy and self.buffers:
            raise BadInput("statistics of batch norm tell of examples, and have no noise here: take another norm")
        self.control = torch.zeros_like(self.weights)
        self.states = {client: ClientState() for client in own}
        counted = self.weights.new_tensor(sum(len(each.labels) for each in self.own.values()))
        communicator.all_reduce(counted)
        self.examples = int(counted)  # of all clients

    def round(self) -> list[int]:
        """One round. Returns the clients that have taken part."""
        rules, like = self.rules, self._said(torch.zeros_like(self.weights), self.control, self.buffers, 0.0)
        if rules.privacy:
            taking_part = volunteers(self.clients, rules.per_round / self.clients, self.rounds, rules.seed)
        else:
            taking_part = chosen(self.clients, rules.per_round, self.rounds, rules.seed)
        said = {client: self._train(client) for client in taking_part if client in self.own}
        total = self.aggregate.sum(said, like, taking_part)
        if rules.privacy:
            self._private_step(total)
        else:
            self._step(total)
        self.rounds += 1
        return taking_part

    def load(self, client: int | None = None) -> nn.Module:
        """The model as it is after the last round; with the buffers of a client of this rank, if one is named."""
        buffers = self.states[client].buffers if client is not None else {}
        with torch.no_grad():
            vector_to_parameters(self.weights, self.parameters)
            for name, x in self.model.named_buffers():
                x.copy_(buffers.get(name, self.buffers[name]))
        return self.model

    def _train(self, client: int) -> Tensor:
        """What a client says of its training."""
        rules, state, (features, labels) = self.rules, self.states[client], self.own[client]
        model, weights = self.load(client).train(), self.weights.clone()
        control = state.control if state.control is not None else torch.zeros_like(weights)
        seeded = generator_of(rules.seed * 1_009 + self.rounds, client)
        steps = 0
        for _ in range(rules.epochs):
            order = torch.randperm(len(labels), generator=seeded)
            for rows in order.tensor_split(max(1, len(labels) // rules.batch)):
                with torch.no_grad():
                    vector_to_parameters(weights, self.parameters)
                loss = F.cross_entropy(model(features[rows]), labels[rows])
                gradient = parameters_to_vector(torch.autograd.grad(loss, self.parameters))
                if rules.rule is ClientRule.PROXIMAL:
                    gradient += rules.proximal * (weights - self.weights)
                if rules.rule is ClientRule.SCAFFOLD:
                    gradient += self.control - control
                weights = weights - rules.rate * gradient
                steps += 1
        change, buffers = weights - self.weights, {name: x.clone() for name, x in model.named_buffers()}
        new = control - self.control - change / (steps * rules.rate)  # option II
        if rules.rule is ClientRule.SCAFFOLD:
            state.control = new
        if rules.buffers is Buffers.OWN:
            state.buffers = buffers
        if rules.privacy:
            return clipped(change, rules.privacy.clip)
        return self._said(change, new - control, buffers, float(len(labels)))

    def _said(self, change: Tensor, control: Tensor, buffers: Mapping[str, Tensor], examples: float) -> Tensor:
        """In one message, all weighted by examples: their number, the change, statistics, and SCAFFOLD's controls."""
        if self.rules.privacy:
            return change
        parts = [change.new_ones(1), change]
        if self.rules.buffers is not Buffers.OWN:
            for mean, variance in statistics(buffers):
                square = mean.square() if self.rules.buffers is Buffers.POOLED else 0.0
                parts += [mean, variance + square]
        if self.rules.rule is ClientRule.SCAFFOLD:
            parts.append(control)
        return examples * torch.cat([part.to(change.dtype) for part in parts])

    def _step(self, total: Tensor) -> None:
        """The server's half of a round."""
        examples = float(total[0])
        change, *rest = (total[1:] / examples).split([len(self.weights), len(total) - 1 - len(self.weights)])
        self.server.step(self.weights, change)
        left = rest[0]
        if self.rules.buffers is not Buffers.OWN:
            for mean, variance in statistics(self.buffers):
                new_mean, new_variance, left = left.split([len(mean), len(mean), len(left) - 2 * len(mean)])
                mean.copy_(new_mean)
                square = new_mean.square() if self.rules.buffers is Buffers.POOLED else 0.0
                variance.copy_(new_variance - square)
        if self.rules.rule is ClientRule.SCAFFOLD:
            self.control.add_(left, alpha=examples / self.examples)

    def _private_step(self, total: Tensor) -> None:
        """With noise that only the first rank draws, and divided by how many clients take part in the mean."""
        noise = self.rules.privacy.draw(total) if self.communicator.rank() == 0 else torch.zeros_like(total)
        self.communicator.broadcast(noise, 0)
        self.server.step(self.weights, (total + noise) / self.rules.per_round)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks have, and the clients of this one by number. All ranks' clients together suit any layout."""
        return {
            "rounds": self.rounds,
            "weights": self.weights.clone(),
            "control": self.control.clone(),
            "buffers": {name: x.clone() for name, x in self.buffers.items()},
            "server": self.server.state_dict(),
            "clients": {number: (state.control, dict(state.buffers)) for number, state in self.states.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next round.

        Raises:
            BadInput: if a client of this rank is not in the state.
        """
        if missing := {*self.own} - {*state["clients"]}:
            raise BadInput(f"client {min(missing)} is not in the state: give the clients of all ranks that have saved")
        self.rounds = state["rounds"]
        self.weights.copy_(state["weights"])
        self.control.copy_(state["control"])
        for name, x in self.buffers.items():
            x.copy_(state["buffers"][name])
        self.server.load_state_dict(state["server"])
        self.states = {client: ClientState(*state["clients"][client]) for client in self.own}


def statistics(buffers: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of each batch norm. Its counter of batches is an integer, and no mean of anything."""
    ends = ("running_mean", "running_var")
    return [(x, buffers[name.replace(*ends)]) for name, x in buffers.items() if name.endswith(ends[0])]
