"""decentralized.parameter_server: A parameter server.

rankwise check decentralized.parameter_server
rankwise hint decentralized.parameter_server

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def parameter_server(
    weight: Tensor,
    target: Tensor,
    order: Sequence[int],
    rate: float,
    group: ProcessGroup,
) -> None:
    """A parameter server.

    Rank 0 is a server: it has the weights, and computes nothing. All others are
    workers: each gets the weights from the server, computes a gradient, sends
    it, and gets new weights as the answer. No worker waits for another one, so
    most gradients are of weights that have changed meanwhile. They are applied
    all the same.

    Which gradient comes first is chance, so that no run is like the one before.
    Here `order` says whose is the next that the server applies; that is how a
    run is repeated from its log.

    Args:
        weight: [N] in float64. On rank 0 the first weights, updated in place:
            weight -= rate * gradient. On a worker it means nothing at first;
            afterwards it must hold the last weights that the server has sent
            it.
        target: [N], of this worker: its gradient is `weight - target`, with the
            weights that it has. On rank 0 it means nothing.
        order: group ranks of workers, as often as each pushes. The same on all
            ranks. A worker that is not in it only gets the first weights.
        rate: of learning.
        group: n ranks. Any n; with one there is no worker.

    Budget: the server sends its weights once to each worker, and once for each
    gradient.
    """
    raise NotImplementedError("not solved yet")
