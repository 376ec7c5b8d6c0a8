"""zero.gather_just_in_time: Gather a layer just in time (ZeRO-3).

rankwise check zero.gather_just_in_time
rankwise hint zero.gather_just_in_time

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

Shape = tuple[int, int]


def forward(
    x: Tensor,
    shards: Sequence[Tensor],
    shapes: Sequence[Shape],
    group: ProcessGroup,
) -> Tensor:
    """Gather a layer just in time (ZeRO-3).

    No rank has a whole weight any more: of each, rank r has the r-th shard. But
    a layer can only compute with all of its weight, and every rank has a batch
    of its own to send through all layers. So borrow: before a layer computes,
    gather its weight from every rank's shards; once it has computed, let go of
    it.

    A shard is an n-th of the weight, flat. Where n does not divide the number
    of its elements, the last ranks' shards end in zeros: cut them off before
    you give the weight its shape.

    Args:
        x: (B, in), this rank's own batch.
        shards: this rank's shard of each weight.
        shapes: of each weight, (out, in). A layer computes x @ weight.T.
        group: n ranks. Any n.

    Returns: what the last layer gives, (B, out).

    Budget: (n-1)/n of all weights sent, in n-1 steps for each weight. Memory
    for what the layers give out and for two weights, however many layers there
    are.
    """
    raise NotImplementedError("not solved yet")
