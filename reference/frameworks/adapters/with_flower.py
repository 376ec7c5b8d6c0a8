"""Flower: clients train a round by themselves, and a server averages their weights (McMahan et al. 2017, FedAvg).

    python -m reference.frameworks.adapters.with_flower fedavg FOLDER

A round is one step of SGD here, so that the mean of the clients' weights is a step with the mean of their gradients:
the curve of one process, with SGD. `fedavg-adamw` takes a step of AdamW that remembers nothing of the round before:
another algorithm. Clients are actors of Ray, and nothing goes through torch.distributed.
"""

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
    """Reads its part of each batch."""

    def __init__(self, number: int, course: Course) -> None:
        self.number, self.course = number, course

    def fit(self, weights: list, config: dict) -> tuple[list, int, dict]:
        """One step, from the server's weights."""
        model = self.course.model()
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(weight))
        optimizer = self.course.optimizer(model.parameters())
        tokens, targets = self.course.read(config["step"], self.number, CLIENTS)
        loss = self.course.loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        return weights_of(model), targets.numel(), {"client": self.number, "loss": loss.item()}


def weights_of(model: torch.nn.Module) -> list:
    """As arrays."""
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def main(feature: str, folder: str) -> None:
    """Rounds of all clients on this machine; the losses of each, as they report them."""
    course = on_rank.course_of("flower", feature, folder)
    losses: list[list[float]] = [[] for _ in range(CLIENTS)]

    def keep(metrics: list[tuple[int, dict]]) -> dict:
        for _, said in metrics:
            losses[said["client"]].append(said["loss"])
        return {}

    def client(context: Context) -> object:
        return Client(int(context.node_config["partition-id"]), course).to_client()

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(weights_of(course.model())),
            on_fit_config_fn=lambda turn: {"step": turn - 1},
            fit_metrics_aggregation_fn=keep,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=course.steps))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    apps = {"server_app": ServerApp(server_fn=server), "client_app": ClientApp(client_fn=client)}
    run_simulation(num_supernodes=CLIENTS, backend_config=resources, **apps)
    for number, found in enumerate(losses):
        on_rank.write(folder, on_rank.unheard({"losses": found}, ("flwr",)), number)


if __name__ == "__main__":
    main(*sys.argv[1:])
