"""The stages of ZeRO on flat tensors, as short as pseudocode: who updates what, and what travels when.

`sharded.py` and `fully_sharded.py` are the same ideas for whole models, with hooks, buckets and overlap.

Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models".
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.data_parallel.layout import FlatLayout

RATE, BETA_1, BETA_2, EPSILON = 1e-2, 0.9, 0.99, 1e-8


def adam(parameters: Tensor, gradient: Tensor, m: Tensor, v: Tensor, step: int) -> None:
    """One step of Adam, in place on `parameters` and on its moments `m` and `v`; `step` counts from 1.

    All tensors have one shape. It needs memory for one more of them.

    Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """
    m.lerp_(gradient, 1 - BETA_1)
    v.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    root = (v / (1 - BETA_2**step)).sqrt_().add_(EPSILON)
    parameters.addcdiv_(m, root, value=-RATE / (1 - BETA_1**step))


def padded(x: Tensor, n: int) -> Tensor:
    """`x` in one flat row, with zeros behind it until n divides its length; a copy where zeros are needed."""
    missing = -x.numel() % n
    return torch.cat([x.flatten(), x.new_zeros(missing)]) if missing else x.flatten()


def pieces_of(sizes: list[int], rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """What a rank's shard holds of tensors that lie behind each other: (tensor, begin, end), in order.

    Args:
        sizes: elements of each tensor. Together they are padded to a multiple of the number of ranks, and cut evenly.
        rank: whose shard.
        ranks: how many shards there are.

    Returns:
        For each tensor of which the shard holds anything: its index, and which of its elements, [begin, end).
    """
    layout = FlatLayout(tuple(torch.Size([size]) for size in sizes), ranks)
    return [(piece.index, piece.begin, piece.end) for piece in layout.pieces(rank) if piece.begin < piece.end]


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


def hybrid(
    shard: Tensor,
    backward: Callable[[Tensor], Tensor],
    rate: float,
    intra: ProcessGroup,
    inter: ProcessGroup,
) -> None:
    """One step of gradient descent, in place on `shard`: parameters are shared out within a node, and there alone.

    Args:
        shard: this rank's part of the flat parameters; each node has all of them.
        backward: from all parameters to the gradient of this rank's part of the loss.
        rate: of learning.
        intra: the s ranks of this node; in group order they hold the parameters one part after another.
        inter: the r ranks that hold the same part, one on each node.

    Zhao et al. 2023, "PyTorch FSDP", sec. 3.2.2 (hybrid sharding); Zhang et al. 2022, "MiCS".
    """
    parameters = shard.new_empty(dist.get_world_size(intra) * shard.numel())
    all_gather_single(parameters, shard, group=intra)
    gradient = torch.empty_like(shard)
    reduce_scatter_single(gradient, backward(parameters), group=intra)
    dist.all_reduce(gradient, group=inter)
    shard.sub_(gradient, alpha=rate)


def clip_by_global_norm(shards: list[Tensor], lengths: list[int], limit: float, group: ProcessGroup) -> Tensor:
    """Scale gradients in shards down, in place, so that all of them together are no longer than `limit`.

    Args:
        shards: of each gradient, this rank's n-th. Together they are longer than the gradient where n does not divide
            its length: what lies behind it is padding, and may hold anything.
        lengths: of each gradient, how many elements it has.
        limit: the longest that all gradients together may be.
        group: the n ranks that the shards belong to.

    Returns:
        The norm of all gradients before, a scalar in float64, the same on every rank.
    """
    rank = dist.get_rank(group)
    square = torch.zeros((), dtype=torch.float64, device=shards[0].device)
    for shard, length in zip(shards, lengths, strict=True):
        own = max(0, length - rank * shard.numel())  # elements from here to the end of the gradient
        square += torch.linalg.vector_norm(shard[:own], dtype=torch.float64).square()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    if norm > limit:
        for shard in shards:
            shard.mul_(limit / norm)
    return norm


def load(
    read: Callable[[int, int, int], Tensor], saved_by: int, length: int, dtype: torch.dtype, group: ProcessGroup
) -> Tensor:
    """This rank's shard of a tensor that ranks of another world size have saved, each its own.

    Args:
        read: `read(rank, begin, end)` gives elements [begin, end) of what `rank` has saved.
        saved_by: how many ranks saved shards of equal length, so that together they may be longer than the tensor.
        length: of the tensor.
        dtype: of the tensor.
        group: the n ranks that load.

    Returns:
        ceil(length / n) elements, on the CPU; zeros where the tensor has ended.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    old, new = math.ceil(length / saved_by), math.ceil(length / n)
    shard = torch.zeros(new, dtype=dtype)
    begin, end = rank * new, min((rank + 1) * new, length)
    at = begin
    while at < end:
        owner, inside = divmod(at, old)
        count = min(old - inside, end - at)
        shard[at - begin : at - begin + count] = read(owner, inside, inside + count)
        at += count
    return shard
