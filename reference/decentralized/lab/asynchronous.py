"""Asynchronous trainings, watched: `python -m reference.decentralized.lab.asynchronous` compares them.

Real processes: the first ranks are servers, the others workers, of which the last is slow. Steps are made longer by
sleeping.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster, Gone
from reference.collectives.default import over

from ..parameter_server import Arrival, ParameterServer, StepSize, by_staleness, constant, serve, shards, work
from ..replay import replay
from .least_squares import LeastSquares

PRELOAD = ("reference.decentralized.lab.asynchronous",)


@dataclass(frozen=True)
class AsyncRun:
    """What is done.

    Attributes:
        problem: what is learned.
        steps: of each worker.
        rate: of learning, by staleness.
        bound: of steps that a worker is ahead, as for `ParameterServer`.
        servers: the first ranks.
        pace: seconds that a step sleeps, by rank.
    """

    problem: LeastSquares
    steps: int
    rate: StepSize
    bound: int | None = None
    servers: int = 1
    pace: Callable[[int], float] = lambda rank: 0.0

    @property
    def begin(self) -> Tensor:
        """The weights of version 0."""
        return torch.zeros(self.problem.size, dtype=torch.float64)


@dataclass(frozen=True)
class AsyncResult:
    """What came of it.

    Attributes:
        weights: [N], the last ones.
        records: what each server applied.
        seconds: from begin to end.
    """

    weights: Tensor
    records: Sequence[Sequence[Arrival]]
    seconds: float

    @property
    def staleness(self) -> list[int]:
        """Of each update, of all servers."""
        return [arrival.staleness for record in self.records for arrival in record]


def run(cluster: Cluster, asked: AsyncRun) -> AsyncResult:
    """Train on the ranks of a cluster. Workers may die: the others continue."""
    began = time.perf_counter()
    told = [each for each in cluster.survive(on_a_rank, asked) if not isinstance(each, Gone) and each is not None]
    weights, records = zip(*told, strict=True)
    return AsyncResult(torch.cat(weights), records, time.perf_counter() - began)


def on_a_rank(asked: AsyncRun) -> tuple[Tensor, list[Arrival]] | None:
    """Be a server or a worker. Returns what a server has, and what was applied to it."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    servers, workers = ranks[: asked.servers], ranks[asked.servers :]
    communicator, weights = over(dist.group.WORLD), asked.begin
    if rank in servers:
        server = ParameterServer(shards(weights, len(servers))[rank].clone(), workers, asked.rate, asked.bound)
        serve(server, communicator)
        return server.weights, server.arrivals

    def gradient(step: int, weights: Tensor) -> Tensor:
        time.sleep(asked.pace(rank))
        return asked.problem.gradient(rank, step, weights)

    work(weights, gradient, range(asked.steps), communicator, servers)
    return None


def main() -> None:
    """Print a row for each way: how long it took, how late gradients were, and how good the result is."""
    problem, ranks, rounds, rate, large = LeastSquares.drawn(size=40, examples=2000), 5, 60, 0.02, 0.3
    pace = partial(_slow_last, ranks)
    ways = {
        "synchronous (bound 0)": AsyncRun(problem, rounds, constant(rate), bound=0, pace=pace),
        "bound 3": AsyncRun(problem, rounds, constant(rate), bound=3, pace=pace),
        "no bound": AsyncRun(problem, rounds, constant(rate), pace=pace),
        f"no bound, rate {large}": AsyncRun(problem, rounds, constant(large), pace=pace),
        f"no bound, rate {large} / staleness": AsyncRun(problem, rounds, by_staleness(large), pace=pace),
        "two servers, three workers": AsyncRun(problem, rounds, constant(rate), servers=2, pace=pace),
    }
    print(f"{rounds} steps of each worker, the last of which is slow; the best loss is {problem.best:.5f}\n")
    print(f"{'':30}{'seconds':>8}{'staleness, mean':>17}{'most':>6}{'loss':>10}  replayed")
    with Cluster(ranks, preload=PRELOAD) as cluster:
        cluster.ready()
        for name, asked in ways.items():
            result = run(cluster, asked)
            again = replay(asked.begin, problem.gradient, result.records, asked.rate)
            same = "equal in all bits" if torch.equal(again, result.weights) else "other weights"
            late, loss = result.staleness, problem.loss(result.weights)
            print(f"{name:30}{result.seconds:8.2f}{mean(late):17.2f}{max(late):6}{loss:10.4g}  {same}")


def _slow_last(ranks: int, rank: int) -> float:
    """Seconds of a step: 2 ms, and 8 ms on the last rank."""
    return 0.008 if rank == ranks - 1 else 0.002


if __name__ == "__main__":
    main()
