"""What belongs to ZeRO's stages and is a puzzle of its own: hybrid sharding, clipping, shards of another world size."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.data_parallel.flat_layout import FlatLayout


def pieces_of(sizes: list[int], rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """What a rank's shard holds of tensors that lie one after another: (tensor, begin, end), in order.

    Args:
        sizes: elements of each tensor. Together they are padded to a multiple of the number of ranks, and cut evenly.
        rank: whose shard.
        ranks: how many shards there are.

    Returns:
        For each tensor of which the shard holds anything: its index, and which of its elements, [begin, end).
    """
    layout = FlatLayout(tuple(torch.Size([size]) for size in sizes), ranks)
    return [(piece.index, piece.begin, piece.end) for piece in layout.pieces(rank) if piece.begin < piece.end]


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
            its length: what lies after it is padding, and may hold anything.
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
