"""decentralized.batch_norm_buffers: Whose batch-norm buffers.

rankwise check decentralized.batch_norm_buffers
rankwise hint decentralized.batch_norm_buffers

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def pool(
    mean: Tensor, variance: Tensor, examples: int, group: ProcessGroup
) -> None:
    """Whose batch-norm buffers.

    Batch norm keeps a mean and a variance of each channel: buffers, no
    parameters, so that a federated average of parameters forgets them. Then
    each client has those of its own examples, and the model that all share has
    none. To average variances as if they were parameters is wrong, too: where
    clients have other examples, most of the variance is between clients, and
    none of them has seen it.

    Find the mean and the variance over the examples of all clients together.

    Args:
        mean: [C] in float64, over this client's examples. Becomes that over
            all, in place, on every rank.
        variance: [C], the mean squared distance from it (divided by the number
            of examples). Likewise.
        examples: that this client has, 1 or more. No rank knows the others'
            numbers.
        group: n ranks, a client each. Any n.

    Budget: one all-reduce of 2C + 1 numbers.
    """
    raise NotImplementedError("not solved yet")
