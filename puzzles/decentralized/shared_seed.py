"""decentralized.shared_seed: A shared seed instead of a mask.

rankwise check decentralized.shared_seed
rankwise hint decentralized.shared_seed

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def average_a_few(
    weight: Tensor, step: int, share: float, group: ProcessGroup
) -> None:
    """A shared seed instead of a mask.

    SPARTA averages a small share of the parameters after each step, drawn anew
    each time. In one public engine a rank draws a mask and broadcasts it: a
    byte for each parameter, where the values that it is about are two hundred
    times fewer. But what is drawn follows from a seed, and all know the step.

    An element is drawn where `torch.rand(N, generator=g) < share`, with
    `g = torch.Generator()` and the step as its seed. Replace the elements that
    are drawn by their mean over islands; leave the others as they are.

    Args:
        weight: [N], of this island. Updated in place.
        step: the same on all ranks.
        share: of elements, from 0 to 1.
        group: n ranks, an island each. Any n.

    Budget: one all-reduce of as many numbers as were drawn.
    """
    raise NotImplementedError("not solved yet")
