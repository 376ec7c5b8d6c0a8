"""decentralized.pseudo_gradient: What a round has changed, as a gradient.

rankwise check decentralized.pseudo_gradient
rankwise hint decentralized.pseudo_gradient

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def pseudo_gradient(
    weight: Tensor, anchor: Tensor, group: ProcessGroup
) -> Tensor:
    """What a round has changed, as a gradient.

    After a round an island is somewhere else than where it began, the anchor.
    DiLoCo lets an optimizer take a step from the anchor with what islands have
    changed in the place of a gradient. An optimizer subtracts: with SGD, a rate
    of 1 and no momentum the step has to end at the mean of the islands,
    downhill. In two published engines it went uphill (torchtitan PR1507,
    torchft PR233).

    Args:
        weight: [N], where this island is now. It stays as it is.
        anchor: [N], where all began: equal on all ranks. It stays as it is,
            since the outer step begins there.
        group: n ranks, an island each. Any n.

    Returns: the pseudo-gradient, [N], the same on all ranks.

    Budget: one all-reduce of N numbers.
    """
    raise NotImplementedError("not solved yet")
