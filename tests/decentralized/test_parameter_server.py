"""Gradients that come late: how late, in which bounds, and the same again from the record."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.decentralized import plain_unscheduled
from reference.decentralized.hogwild import SharedWeights, SparseGradient, add_ones, hogwild
from reference.decentralized.lab.asynchronous import AsyncRun, run
from reference.decentralized.lab.least_squares import LeastSquares
from reference.decentralized.parameter_server import Arrival, ParameterServer, by_staleness, constant
from reference.decentralized.replay import replay
from reference.errors import BadInput

PROBLEM = LeastSquares.drawn(size=7, examples=60)
RATE, STEPS = 0.05, 6


def uneven(rank: int) -> float:
    """Seconds of a step: each rank is slower than the one before."""
    return 0.001 * rank


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rate", [constant(RATE), by_staleness(RATE)], ids=["constant", "by staleness"])
def test_a_replay_equals_the_recorded_run(clusters: Callable[..., Cluster], servers: int, rate: object) -> None:
    asked = AsyncRun(PROBLEM, STEPS, rate, servers=servers, pace=uneven)
    result = run(clusters(4), asked)
    assert [len(record) for record in result.records] == [(4 - servers) * STEPS] * servers
    assert torch.equal(replay(asked.begin, PROBLEM.gradient, result.records, rate), result.weights)


def test_one_server_is_the_plain_algorithm(clusters: Callable[..., Cluster]) -> None:
    asked = AsyncRun(PROBLEM, STEPS, constant(RATE), pace=uneven)
    result = run(clusters(4), asked)
    arrivals = [(each.worker, each.read) for each in result.records[0]]
    plain = plain_unscheduled.asynchronous(asked.begin, PROBLEM.gradient, arrivals, RATE)
    torch.testing.assert_close(result.weights, plain, rtol=1e-14, atol=1e-14)
    assert [each.version for each in result.records[0]] == [*range(3 * STEPS)]


def test_bound_zero_is_synchronous_training(clusters: Callable[..., Cluster]) -> None:
    """With the sum of all gradients of a step, each of the same weights."""
    asked = AsyncRun(PROBLEM, STEPS, constant(RATE), bound=0, pace=uneven)
    result, weights = run(clusters(4), asked), asked.begin
    for step in range(STEPS):
        weights = weights - RATE * sum(PROBLEM.gradient(worker, step, weights) for worker in (1, 2, 3))
    torch.testing.assert_close(result.weights, weights, rtol=1e-12, atol=1e-12)
    assert result.staleness == [0, 1, 2] * STEPS


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_staleness_has_a_bound_where_clocks_have_one(bound: int) -> None:
    """Workers of which one is always ready and one never, as long as any other may push."""
    workers = [0, 1, 2]
    server = ParameterServer(torch.zeros(1), workers, constant(1.0), bound)
    read = {worker: int(said[0]) for worker, said in server.proceed().items()}
    ahead = 0
    while sum(server.clocks.values()) < 60:
        worker = max(sorted(read), key=lambda each: (-each, server.clocks[each]))  # the last one only if it must
        version = read.pop(worker)
        read |= {each: int(said[0]) for each, said in server.push(worker, torch.ones(1), version).items()}
        ahead = max(ahead, max(server.clocks.values()) - min(server.clocks.values()))
    assert ahead == bound + 1, "one that may take a step is a step further when it has pushed"
    assert max(each.staleness for each in server.arrivals) <= (2 * bound + 1) * (len(workers) - 1)
    assert float(server.weights) == -60


def test_one_that_has_ended_holds_up_no_other() -> None:
    server = ParameterServer(torch.zeros(2), [1, 2], constant(1.0), bound=1)
    assert set(server.proceed()) == {1, 2}
    assert set(server.push(1, torch.ones(2), 0)) == {1}
    assert server.push(1, torch.ones(2), 1) == {}, "two steps ahead of the other one, which is not here"
    assert set(server.leave(2)) == {1}
    assert set(server.push(1, torch.ones(2), 2)) == {1}


def dies(rank: int) -> float:
    """Rank 3 does not end its third step."""
    steps = dies.__dict__.setdefault("steps", [])
    steps.append(rank)
    if rank == 3 and len(steps) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def test_a_worker_that_dies_holds_up_no_other(clusters: Callable[..., Cluster]) -> None:
    asked = AsyncRun(PROBLEM, STEPS, constant(RATE), bound=1, pace=dies)
    began = time.monotonic()
    weights, (arrivals,) = (result := run(clusters(4), asked)).weights, result.records
    assert [sum(each.worker == worker for each in arrivals) for worker in (1, 2, 3)] == [STEPS, STEPS, 2]
    assert torch.equal(replay(asked.begin, PROBLEM.gradient, [arrivals], asked.rate), weights)
    assert time.monotonic() - began < 60


def test_a_server_continues_from_its_state() -> None:
    """What is pushed after it was loaded does what it would have done before."""

    def pushes(server: ParameterServer, some: range) -> None:
        for number in some:
            worker = number % 2
            read = max(0, server.version - number % 3)
            server.push(worker, PROBLEM.gradient(worker, server.clocks[worker], server.weights), read)

    whole, first, second = (ParameterServer(torch.zeros(7).double(), [0, 1], by_staleness(RATE)) for _ in range(3))
    pushes(whole, range(9))
    pushes(first, range(5))
    second.load_state_dict(first.state_dict())
    assert second.clocks == {0: 3, 1: 2}
    assert set(second.proceed()) == {0, 1}
    pushes(second, range(5, 9))
    assert torch.equal(second.weights, whole.weights)
    assert second.arrivals == whole.arrivals


def test_what_cannot_be_is_refused() -> None:
    server = ParameterServer(torch.zeros(2), [1], constant(1.0))
    server.push(1, torch.ones(2), 0)
    with pytest.raises(BadInput, match="2 weights were saved, and this server has 3"):
        ParameterServer(torch.zeros(3), [1], constant(1.0)).load_state_dict(server.state_dict())
    with pytest.raises(BadInput, match="worker 1 has pushed"):
        ParameterServer(torch.zeros(2), [2], constant(1.0)).load_state_dict(server.state_dict())
    with pytest.raises(BadInput, match="not -1"):
        ParameterServer(torch.zeros(2), [1], constant(1.0), bound=-1)
    with pytest.raises(BadInput, match="of weights that come after it"):
        replay(torch.zeros(7).double(), PROBLEM.gradient, [[Arrival(0, 0, 1, 0)]], constant(1.0))


def sparse(process: int, step: int, weights: torch.Tensor) -> SparseGradient:
    """Of a few of the weights: those differ from their own numbers."""
    places = torch.randperm(len(weights), generator=torch.Generator().manual_seed(100 * process + step))[:5]
    return SparseGradient(places, weights[places] - places)


def _hogwild(folder: Path, steps: int) -> list[int]:
    process = dist.get_rank()
    shared = SharedWeights.at(folder, 200, dist.get_world_size())
    dist.barrier()
    return hogwild(shared, process, partial(sparse, process), steps, rate=0.5)


def test_hogwild_learns_without_a_lock(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    steps = 800
    staleness = clusters(2).run(_hogwild, tmp_path, steps)
    shared = SharedWeights.at(tmp_path, 200, 2)
    assert shared.clocks.tolist() == [steps, steps]
    assert [len(each) for each in staleness] == [steps, steps]
    assert min(map(min, staleness)) >= 0
    assert (shared.weights - torch.arange(200)).abs().mean() < 1, "they began 100 away"


def test_hogwild_of_one_process_is_sgd(tmp_path: Path) -> None:
    shared = SharedWeights.at(tmp_path, 20, 1)
    assert hogwild(shared, 0, partial(sparse, 0), 30, rate=0.3) == [0] * 30
    weights = torch.zeros(20).double()
    for step in range(30):
        places, values = sparse(0, step, weights)
        weights[places] -= 0.3 * values
    torch.testing.assert_close(shared.weights, weights, rtol=1e-14, atol=0)
    add_ones(shared, 0, [torch.tensor([3, 4])] * 5)
    torch.testing.assert_close(shared.weights.sum(), weights.sum() + 10)
