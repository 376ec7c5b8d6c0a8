"""Flower: clients train a round by themselves, and a server averages their weights (McMahan et al. 2017, FedAvg).

    python -m reference.frameworks.adapters.with_flower fedavg FOLDER

A round is one step of SGD here, so that the mean of the clients' weights is a step with the mean of their gradients:
the curve of one process, with SGD. `fedavg-adamw` takes a step of AdamW that remembers nothing of the round before:
another algorithm. `fedavg-uneven` takes five such steps in a round, on clients of unequal examples, by which they
count: the curve of our FedAvg. Clients are actors of Ray, and nothing goes through torch.distributed.
"""

import json
import sys

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from reference.frameworks import on_rank
from reference.frameworks.plain import Course

CLIENTS = 2


class Client(NumPyClient):
    """Reads its part of each batch, or the windows that it has."""

    def __init__(self, number: int, course: Course) -> None:
        self.number, self.course = number, course

    def fit(self, weights: list, config: dict) -> tuple[list, int, dict]:
        """The steps of a round, from the server's weights."""
        model = self.course.model()
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(weight))
        optimizer = self.course.optimizer(model.parameters())
        losses, examples = [], 0
        for step in range(config["begin"], config["begin"] + steps_of_round(self.course)):
            tokens, targets = self.read(step)
            optimizer.zero_grad()
            loss = self.course.loss(model(tokens), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            examples += targets.numel()
        return weights_of(model), examples, {"client": self.number, "losses": json.dumps(losses)}

    def read(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of a step."""
        if self.course.clients:
            return self.course.of_client(step, self.number)
        return self.course.read(step, self.number, CLIENTS)


def steps_of_round(course: Course) -> int:
    """Between two means."""
    return course.inner_steps if course.clients else 1


def weights_of(model: torch.nn.Module) -> list:
    """As arrays."""
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def main(feature: str, folder: str) -> None:
    """Rounds of all clients on this machine; the losses of each, as they report them."""
    course = on_rank.course_of("flower", feature, folder)
    losses: list[list[float]] = [[] for _ in range(CLIENTS)]

    def keep(metrics: list[tuple[int, dict]]) -> dict:
        for _, said in metrics:
            losses[said["client"]] += json.loads(said["losses"])
        return {}

    def client(context: Context) -> object:
        return Client(int(context.node_config["partition-id"]), course).to_client()

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(weights_of(course.model())),
            on_fit_config_fn=lambda turn: {"begin": (turn - 1) * steps_of_round(course)},
            fit_metrics_aggregation_fn=keep,
        )
        return ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=course.steps // steps_of_round(course))
        )

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    apps = {"server_app": ServerApp(server_fn=server), "client_app": ClientApp(client_fn=client)}
    run_simulation(num_supernodes=CLIENTS, backend_config=resources, **apps)
    for number, found in enumerate(losses):
        on_rank.write(folder, on_rank.unheard({"losses": found}, ("flwr",)), number)


if __name__ == "__main__":
    main(*sys.argv[1:])
