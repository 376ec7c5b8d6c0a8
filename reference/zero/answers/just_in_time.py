"""A layer's weight exists whole while the layer computes, and only then: the steps on the way to `plain.fully_sharded`.

| function              | sent by a rank | weights alive at once                      | gradients alive at once |
|-----------------------|----------------|--------------------------------------------|-------------------------|
| `weight_sharded`      | 4Ψ(n-1)/n      | one                                        | all                     |
| `fully_sharded`       | 3Ψ(n-1)/n      | one                                        | one, and shards         |
| `prefetched`, forward |  Ψ(n-1)/n      | two: the next one comes while one computes |                         |
"""

import math
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single
from reference.zero.plain import Shape, gather


def forward(x: Tensor, shards: Sequence[Tensor], shapes: Sequence[Shape], group: ProcessGroup) -> Tensor:
    """The output of linear layers whose weights are in shards: x Wᵀ, layer after layer.

    Args:
        x: (B, in), this rank's own.
        shards: of each weight, this rank's n-th of the flat weight, which is padded to a multiple of n.
        shapes: (out, in) of each weight.
        group: n ranks.

    Returns:
        (B, out of the last layer)
    """
    for shard, shape in zip(shards, shapes, strict=True):
        weight = gather(shard, shape, group)
        x = x @ weight.T
        del weight
    return x


def prefetched(
    x: Tensor,
    shards: Sequence[Tensor],
    shapes: Sequence[Shape],
    layer: Callable[[Tensor, Tensor], Tensor],
    group: ProcessGroup,
) -> Tensor:
    """As `forward`, but each layer's weight is in flight while the layer before it computes.

    Args:
        x, shards, shapes, group: as for `forward`.
        layer: (x, weight) -> what the layer makes of x.
    """
    upcoming = begin_to_gather(shards[0], group)
    for index, shape in enumerate(shapes):
        flat, work = upcoming
        work.wait()
        if index + 1 < len(shards):
            upcoming = begin_to_gather(shards[index + 1], group)
        x = layer(x, flat[: math.prod(shape)].view(shape))
    return x


def begin_to_gather(shard: Tensor, group: ProcessGroup) -> tuple[Tensor, dist.Work]:
    """The flat weight, which is whole when the wait for the request returns."""
    flat = shard.new_empty(dist.get_world_size(group) * shard.numel())
    return flat, all_gather_single(flat, shard, group=group, async_op=True)


def weight_sharded(
    x: Tensor, shards: Sequence[Tensor], shapes: Sequence[Shape], upstream: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Forward and backward with weights in shards; gradients are whole, and all-reduced.

    Args:
        x, shards, shapes, group: as for `forward`.
        upstream: (B, out of the last layer), gradient of the loss with respect to the output.

    Returns:
        The output; the gradient of this rank's loss with respect to x; the gradient of all ranks' losses with respect
        to each weight, (out, in).

    Rush 2023, "LLM training puzzles", puzzle 3 (weight-sharded data parallelism).
    """
    inputs = []
    for shard, shape in zip(shards, shapes, strict=True):
        weight = gather(shard, shape, group)
        inputs.append(x)
        x = x @ weight.T
        del weight
    gradients = []
    for shard, shape in zip(reversed(shards), reversed(shapes), strict=True):
        gradient = upstream.T @ inputs.pop()
        dist.all_reduce(gradient, group=group)
        gradients.append(gradient)
        weight = gather(shard, shape, group)
        upstream = upstream @ weight
        del weight
    return x, upstream, gradients[::-1]
