"""zero.free_it: Free it (ZeRO-3).

rankwise check zero.free_it
rankwise hint zero.free_it

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

from reference.zero.plain import gather

Shape = tuple[int, int]


def fully_sharded(
    x: Tensor,
    shards: Sequence[Tensor],
    shapes: Sequence[Shape],
    upstream: Tensor,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Free it (ZeRO-3).

    Forward and backward of which nothing stays whole. As in the puzzle before:
    weights live in shards, backward gathers each once more, and

        gradient of the weight = upstream.T @ x
        gradient of x = upstream @ weight

    But now a rank keeps of each gradient only its shard of the sum over ranks,
    and it must not have more than three whole things at any time, weights and
    gradients together. PyTorch frees a tensor when its last name is gone. A
    loop that says `weight = gather(...)` makes the next weight while `weight`
    still stands for the last one; `del weight` ends a name.

    Given is `gather(shard, shape, group)`: the whole weight.

    Args:
        x: (B, in), this rank's own batch.
        shards: this rank's shard of each weight: its n-th of the flat weight,
            with zeros after it where n does not divide.
        shapes: of each weight, (out, in). A layer computes x @ weight.T.
        upstream: gradient of this rank's loss with respect to what the last
            layer gives.
        group: n ranks. Any n.

    Returns: three things: what the last layer gives; the gradient of this
    rank's loss with respect to x; a list of this rank's shards of the gradients
    of all ranks' losses with respect to each weight, as long as `shards`, with
    zeros in the same places.

    Budget: 3(n-1)/n of all weights sent. Memory for the shards of gradients,
    for what the layers give out and get back, and for three whole weights or
    gradients.
    """
    raise NotImplementedError("not solved yet")
