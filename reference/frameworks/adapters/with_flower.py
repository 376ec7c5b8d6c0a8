"""Flower: clients train a round by themselves, and a server averages their weights (McMahan et al. 2017, FedAvg).

    python -m reference.frameworks.adapters.with_flower fedavg FOLDER

A round is one step of SGD here, so that the mean of the clients' weights is a step with the mean of their gradients:
the curve of one process, with SGD. `fedavg-adamw` takes a step of AdamW that remembers nothing of the round before:
another algorithm. `fedavg-uneven` takes five such steps in a round, on clients of unequal examples, by which they
count: the curve of our FedAvg. Clients are actors of Ray, and nothing goes through torch.distributed.
"""

import json
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

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
        own, part = partial(course.of_client, client=number), partial(course.read, part=number, parts=CLIENTS)
        self.read = own if course.clients else part

    def fit(self, weights: list, config: dict) -> tuple[list, int, dict]:
        """The steps of a round, from the server's weights."""
        model = self.course.model()
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(weight))
        optimizer = self.course.optimizer(model.parameters())
        losses, examples, begin = [], 0, config["begin"]
        with on_rank.peak_memory() if begin == 0 else nullcontext([0]) as peak:
            for step in range(begin, config["end"]):
                tokens, targets = self.read(step)
                optimizer.zero_grad()
                loss = self.course.loss(model(tokens), targets)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                examples += targets.numel()
        return weights_of(model), examples, {"client": self.number, "losses": json.dumps(losses), "peak": peak[0]}


def weights_of(model: torch.nn.Module) -> list:
    """As arrays."""
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def main(feature: str, folder: str) -> None:
    """Rounds of all clients on this machine; the losses of each, as they report them."""
    course = on_rank.course_of("flower", feature, folder)
    each = course.inner_steps if course.clients else 1  # steps of a round
    losses: list[list[float]] = [[] for _ in range(CLIENTS)]
    peaks, ends = [], [time.perf_counter()]  # of clients, and of rounds

    def keep(metrics: list[tuple[int, dict]]) -> dict:
        for _, said in metrics:
            losses[said["client"]] += json.loads(said["losses"])
            peaks.append(said["peak"])
        ends.append(time.perf_counter())
        return {}

    def client(context: Context) -> object:
        return Client(int(context.node_config["partition-id"]), course).to_client()

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(weights_of(course.model())),
            on_fit_config_fn=lambda turn: {"begin": (turn - 1) * each, "end": turn * each},
            fit_metrics_aggregation_fn=keep,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=course.steps // each))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    apps = {"server_app": ServerApp(server_fn=server), "client_app": ClientApp(client_fn=client)}
    run_simulation(num_supernodes=CLIENTS, backend_config=resources, **apps)
    seconds = [(end - begin) / each for begin, end in pairwise(ends)]
    found = {"seconds": seconds, "peak": max(peaks), "marks": [], "events": [], "versions": on_rank.versions(("flwr",))}
    for number, curve in enumerate(losses):
        on_rank.write(folder, found | {"losses": curve}, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
