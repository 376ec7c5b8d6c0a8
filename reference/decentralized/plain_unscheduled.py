"""Training without a schedule that all ranks keep, in its smallest forms: late gradients, neighbours, clients, liars.

    asynchronous   each gradient is applied when it comes, to weights that are newer than those it is of
    gossip         each rank averages with its neighbours alone, and steps
    federated      clients train on what they have, and a mean weighted by examples is the next model
    robust         of what all say, the middle: a few ranks that lie do not move it far

All in one process. The engines beside this file do the same between ranks, and are held to it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def asynchronous(
    weights: Tensor, gradient: Callable[[int, int, Tensor], Tensor], arrivals: Sequence[tuple[int, int]], rate: float
) -> Tensor:
    """The weights [N] after the gradients that have come, in their order.

    Args:
        weights: [N], version 0.
        gradient: of a worker, its step (from 0 on) and the weights that it read: [N].
        arrivals: of each gradient the worker, and the version that it read. The i-th makes version i + 1.
        rate: of learning.
    """
    versions, steps = [weights], dict.fromkeys((worker for worker, _ in arrivals), 0)
    for worker, read in arrivals:
        versions.append(versions[-1] - rate * gradient(worker, steps[worker], versions[read]))
        steps[worker] += 1
    return versions[-1]


def gossip(x: Tensor, mixing: Tensor, gradient: Callable[[int, Tensor], Tensor], rate: float) -> Tensor:
    """A step of decentralized SGD (Lian et al. 2017, arXiv:1705.09056, algorithm 1).

    Args:
        x: [n, N], the weights of each rank.
        mixing: [n, n], doubly stochastic: rank i takes mixing[i, j] of what rank j has.
        gradient: of a rank, at its own weights: [N].
        rate: of learning.
    """
    return mixing @ x - rate * torch.stack([gradient(rank, own) for rank, own in enumerate(x)])


def federated(weights: Tensor, train: Callable[[int, Tensor], Tensor], examples: Sequence[int]) -> Tensor:
    """A round of FedAvg (McMahan et al. 2017, arXiv:1602.05629, algorithm 1).

    Args:
        weights: [N], of all.
        train: what a client makes of them with its own examples: [N].
        examples: that each client has.
    """
    trained = torch.stack([train(client, weights) for client in range(len(examples))])
    shares = torch.tensor(examples, dtype=weights.dtype) / sum(examples)
    return shares @ trained


def robust(said: Tensor, liars: int) -> Tensor:
    """The mean of what is left of each element without the `liars` largest and smallest (Yin et al. 2018).

    Args:
        said: [n, N], what each rank says.
        liars: f, fewer than n / 2.
    """
    return said.sort(0).values[liars : len(said) - liars].mean(0)
