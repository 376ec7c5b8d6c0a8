"""The three stages of ZeRO on flat tensors, as short as pseudocode: which rank updates what, and what travels when.

| stage           | a rank keeps an n-th of | sent by a rank in a step of Ψ parameters      |
|-----------------|-------------------------|-----------------------------------------------|
| `zero_1`        | the optimizer's state   | 2Ψ(n-1)/n                                     |
| `zero_2`        | and the gradients       | the same; (1 + K)Ψ(n-1)/n for K micro-batches |
| `fully_sharded` | and the parameters      | 3Ψ(n-1)/n for each micro-batch                |

Letting go is the end of a name: `del weight` frees it at once, `weight = gather(...)` only after the next one is made.

Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models", sec. 5.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single, reduce_scatter_single

RATE, BETA_1, BETA_2, EPSILON = 1e-2, 0.9, 0.99, 1e-8
Shape = tuple[int, int]


def adam(parameters: Tensor, gradient: Tensor, m: Tensor, v: Tensor, step: int) -> None:
    """One step of Adam, in place on `parameters` and on its moments `m` and `v`; `step` counts from 1.

    All tensors have one shape. It needs memory for one more of them.

    Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    m.lerp_(gradient, 1 - BETA_1)
    v.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    root = (v / (1 - BETA_2**step)).sqrt_().add_(EPSILON)
    parameters.addcdiv_(m, root, value=-RATE / (1 - BETA_1**step))


def zero_1(
    parameters: Tensor, backward: Callable[[Tensor], Tensor], steps: int, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Train by Adam, in place on `parameters`; each rank updates its slice, and keeps moments for that alone.

    Args:
        parameters: flat, the same on every rank; n divides their number.
        backward: from parameters to the gradient of this rank's part of the loss, of their shape.
        steps: how many.
        group: n ranks.

    Returns:
        The moments m and v of this rank's slice, elements [rank * length / n, (rank + 1) * length / n).

    ZeRO, sec. 5.1 (P_os); Xu et al. 2020, "Automatic cross-replica sharding of weight update in data-parallel
    training".
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = parameters.view(n, -1)[rank]
    m, v, gradient = torch.zeros_like(mine), torch.zeros_like(mine), torch.empty_like(mine)
    for step in range(1, steps + 1):
        reduce_scatter_single(gradient, backward(parameters), group=group)
        adam(mine, gradient, m, v, step)
        all_gather_single(parameters, mine, group=group)
    return m, v


def padded(x: Tensor, n: int) -> Tensor:
    """`x` in one flat row, with zeros after it until n divides its length; a copy where zeros are needed."""
    missing = -x.numel() % n
    return torch.cat([x.flatten(), x.new_zeros(missing)]) if missing else x.flatten()


def zero_2(backward: Iterator[tuple[int, Tensor]], layers: int, group: ProcessGroup) -> list[Tensor]:
    """Add up gradients over ranks and micro-batches; each rank keeps its shard of each, and no gradient whole.

    Args:
        backward: yields (layer, gradient) as backward passes find them; a layer comes once in each micro-batch.
        layers: how many there are.
        group: n ranks.

    Returns:
        By layer, this rank's shard of the sum: its n-th of the flat gradient, which is padded to a multiple of n.

    ZeRO, sec. 5.2 (P_os+g).
    """
    n = dist.get_world_size(group)
    shards: list[Tensor | None] = [None] * layers
    for layer, gradient in backward:
        whole = padded(gradient, n)
        shard = whole.new_empty(whole.numel() // n)
        reduce_scatter_single(shard, whole, group=group)
        shards[layer] = shard if shards[layer] is None else shards[layer].add_(shard)
        del gradient, whole  # before the next one is made
    return shards


def gather(shard: Tensor, shape: Shape, group: ProcessGroup) -> Tensor:
    """The whole weight.

    Args:
        shard: this rank's n-th of the flat weight, which is padded to a multiple of n.
        shape: of the weight.
        group: n ranks.
    """
    flat = shard.new_empty(dist.get_world_size(group) * shard.numel())
    all_gather_single(flat, shard, group=group)
    return flat[: math.prod(shape)].view(shape)


def fully_sharded(
    x: Tensor, shards: Sequence[Tensor], shapes: Sequence[Shape], upstream: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """ZeRO-3: forward and backward of linear layers, x Wᵀ, each of whose weights is whole while it computes.

    Args:
        x: (B, in), this rank's own.
        shards: of each weight, this rank's n-th of the flat weight, which is padded to a multiple of n.
        shapes: (out, in) of each weight.
        upstream: (B, out of the last layer), gradient of the loss with respect to the output.
        group: n ranks.

    Returns:
        The output; the gradient of this rank's loss with respect to x; of the gradient of the sum of all losses
        with respect to each weight, this rank's shard.

    ZeRO, sec. 5.3 (P_os+g+p); Zhao et al. 2023, "PyTorch FSDP".
    """
    inputs = []
    for shard, shape in zip(shards, shapes, strict=True):
        weight = gather(shard, shape, group)
        inputs.append(x)
        x = x @ weight.T
        del weight
    gradients = []
    for shard, shape in zip(reversed(shards), reversed(shapes), strict=True):
        weight = gather(shard, shape, group)
        below = upstream @ weight
        del weight
        whole = shard.new_zeros(dist.get_world_size(group) * shard.numel())
        torch.mm(upstream.T, inputs.pop(), out=whole[: math.prod(shape)].view(shape))
        gradients.append(torch.empty_like(shard))
        reduce_scatter_single(gradients[-1], whole, group=group)
        upstream = below
        del whole
    return x, upstream, gradients[::-1]
