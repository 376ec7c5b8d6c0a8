"""A parameter server, by hand: workers fetch weights and push gradients in their own time, and wait for no other.

This is `plain_unscheduled.asynchronous` with: real messages, weights that lie on several servers, a bound on how far
workers run ahead of each other, steps that become smaller the later a gradient is, and a record of what was late.

    worker                                  server
    receives weights, version v     <----   version v
    computes a gradient                     meanwhile others push: v + 1, v + 2
    pushes it, and says "of v"      ---->   applies it to version v + 2: its staleness is 2

DistBelief (Dean et al. 2012), Project Adam (Chilimbi et al. 2014), Parameter Server (Li et al. 2014). Each message of a
worker has an answer, new weights, which is the permission for its next step. A server that keeps an answer back holds
the worker: so stale-synchronous parallel (Ho et al. 2013) needs no lock and no waiting in the server. A worker that
has ended, or has died, counts no more among those that others must not run away from: or all would wait forever.

| per step and worker | messages       | bytes                       |
|---------------------|----------------|-----------------------------|
| to s servers        | s, s answers   | 2 · (N + s) · element size  |

All servers together send and receive n times as much: with one server, its link is the bottleneck.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

LEAVES = -1.0  # in the place of a version: this worker pushes no more

StepSize = Callable[[int], float]
"""Of an update's staleness: its rate of learning."""


class Arrival(NamedTuple):
    """A gradient that a server has applied."""

    worker: int
    step: int  # of this worker, from 0 on
    read: int  # version of the weights that the gradient is of
    version: int  # of the weights that it was applied to

    @property
    def staleness(self) -> int:
        """How many updates came between."""
        return self.version - self.read


def constant(rate: float) -> StepSize:
    """The same rate for all gradients."""
    return lambda staleness: rate


def by_staleness(rate: float) -> StepSize:
    """A rate divided by the staleness, where it is above 1 (Zhang et al. 2015, arXiv:1511.05950, equation 6)."""
    return lambda staleness: rate / max(1, staleness)


class ParameterServer:
    """The weights of one server, and the rules by which they change. It sends nothing: see `serve`.

    Args:
        weights: [N], changed in place.
        workers: ranks that push.
        rate: of learning, by staleness.
        bound: s; a worker may have pushed s gradients more than the slowest that still works. 0 is synchronous
            training with the sum of all gradients, None is without a bound.

    Raises:
        BadInput: for a bound below 0.
    """

    def __init__(self, weights: Tensor, workers: Sequence[int], rate: StepSize, bound: int | None = None) -> None:
        if bound is not None and bound < 0:
            raise BadInput(f"a worker is 0 or more steps ahead of the slowest, not {bound}: None is for no bound")
        self.weights, self.rate, self.bound = weights, rate, bound
        self.clocks = dict.fromkeys(workers, 0)  # of those that still work: how many gradients each has pushed
        self.waiting = set(workers)  # for weights
        self.arrivals: list[Arrival] = []

    @property
    def version(self) -> int:
        """How many gradients the weights have had."""
        return len(self.arrivals)

    def push(self, worker: int, gradient: Tensor, read: int) -> dict[int, Tensor]:
        """Apply a gradient, of version `read`. Returns the workers that may proceed, each with the weights for it."""
        arrival = Arrival(worker, self.clocks[worker], read, self.version)
        self.apply(gradient, arrival.staleness)
        self.arrivals.append(arrival)
        self.clocks[worker] += 1
        self.waiting.add(worker)
        return self.proceed()

    def apply(self, gradient: Tensor, staleness: int) -> None:
        """What a gradient does to the weights."""
        self.weights.sub_(gradient, alpha=self.rate(staleness))

    def leave(self, worker: int) -> dict[int, Tensor]:
        """A worker pushes no more. Returns those that it has held up."""
        self.clocks.pop(worker, None)
        self.waiting.discard(worker)
        return self.proceed()

    def proceed(self) -> dict[int, Tensor]:
        """Those that wait and are not too far ahead, each with a message: the version, and the weights [N]."""
        slowest = min(self.clocks.values(), default=0)
        ahead = {worker: self.clocks[worker] - slowest for worker in self.waiting}
        ready = [worker for worker in sorted(ahead) if self.bound is None or ahead[worker] <= self.bound]
        self.waiting.difference_update(ready)
        if not ready:
            return {}
        return dict.fromkeys(ready, message(self.version, self.weights))

    def state_dict(self) -> dict[str, Any]:
        """The weights and what was applied to them. Of a gradient in flight, the worker takes the step again."""
        return {"weights": self.weights.clone(), "arrivals": [tuple(each) for each in self.arrivals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there: workers from the steps that they have pushed.

        Raises:
            BadInput: if the state is of other weights, or of a worker that is not here.
        """
        arrivals = [Arrival(*each) for each in state["arrivals"]]
        if state["weights"].shape != self.weights.shape:
            raise BadInput(f"{len(state['weights'])} weights were saved, and this server has {len(self.weights)}")
        if unknown := {each.worker for each in arrivals} - {*self.clocks}:
            raise BadInput(f"worker {min(unknown)} has pushed to what was saved, and does not work here")
        self.weights.copy_(state["weights"])
        self.arrivals = arrivals
        self.clocks = {worker: sum(each.worker == worker for each in arrivals) for worker in self.clocks}
        self.waiting = {*self.clocks}


def message(version: float, x: Tensor) -> Tensor:
    """What travels, either way: a version, and [N] numbers. Float32 counts exactly to 2^24, float64 to 2^53."""
    return torch.cat([x.new_tensor([version]), x])


def serve(server: ParameterServer, communicator: Communicator) -> None:
    """Answer the workers until all have left, or are gone: a thread listens to each, and one at a time is heard."""
    turn = threading.Lock()

    def answer(replies: Mapping[int, Tensor]) -> None:
        for worker, weights in replies.items():
            with suppress(RuntimeError):  # it is gone, and the thread that listens to it learns so
                communicator.start_send(weights, worker)()

    def listen(worker: int) -> None:
        said = torch.empty_like(message(0, server.weights))
        while True:
            try:
                communicator.start_receive(said, worker)()
                read = int(said[0])
            except RuntimeError:  # the connection is closed
                read = int(LEAVES)
            with turn:
                if read == LEAVES:
                    return answer(server.leave(worker))
                answer(server.push(worker, said[1:], read))

    threads = [threading.Thread(target=listen, args=(worker,)) for worker in server.clocks]
    with turn:
        answer(server.proceed())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(
    weights: Tensor,
    gradient: Callable[[int, Tensor], Tensor],
    steps: range,
    communicator: Communicator,
    servers: Sequence[int],
) -> None:
    """A worker's life: weights from each server, a gradient, a piece of it to each server, again.

    Args:
        weights: [N], overwritten by what servers send.
        gradient: of a step, at the weights: [N].
        steps: that this worker takes; those of a new training begin at 0.
        communicator: of workers and servers.
        servers: ranks that have the weights, in the order of the pieces (`shards`).
    """
    pieces = shards(weights, len(servers))
    rooms = [torch.empty_like(message(0, piece)) for piece in pieces]

    def fetch() -> None:
        for finish in [communicator.start_receive(*each) for each in zip(rooms, servers, strict=True)]:
            finish()
        for piece, room in zip(pieces, rooms, strict=True):
            piece.copy_(room[1:])

    def push(said: Sequence[Tensor]) -> None:
        for finish in [communicator.start_send(*each) for each in zip(said, servers, strict=True)]:
            finish()

    fetch()
    for step in steps:
        parts = shards(gradient(step, weights), len(servers))
        push([message(float(room[0]), part) for room, part in zip(rooms, parts, strict=True)])
        fetch()
    push([message(LEAVES, piece) for piece in pieces])


def shards(x: Tensor, servers: int) -> tuple[Tensor, ...]:
    """The piece of `x` that each server has: views."""
    return x.tensor_split(servers)
