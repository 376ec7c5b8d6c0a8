"""Numbers in few bits between ranks: chance that is right on average, two levels, and what travels."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..plain import dequantise, quantise


def round_by_chance(x: Tensor, seed: int) -> Tensor:
    """Each number rounded to an integer beside it, right on average.

    Args:
        x: any finite numbers in float32, up to two million.
        seed: what chance follows from.

    Returns:
        Of the same shape and dtype. The same for the same `x` and seed.
    """
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return (x.double() + chance).floor().to(x.dtype)


def gather_quantised(x: Tensor, block: int, group: ProcessGroup) -> Tensor:
    """What all ranks bring, as it arrives in 8 bits: codes travel, and the scales of their blocks.

    Args:
        x: [m], where `block` divides m, on each of n ranks.
        block: numbers that share a scale.
        group: n ranks.

    Returns:
        [n·m] in float32, the same on every rank.
    """
    n = dist.get_world_size(group)
    codes, scales = quantise(x, block, 127)
    all_codes, all_scales = codes.new_empty(n * len(codes)), scales.new_empty(n * len(scales))
    dist.all_gather(list(all_codes.chunk(n)), codes, group=group)
    dist.all_gather(list(all_scales.chunk(n)), scales, group=group)
    return dequantise(all_codes, all_scales)


def pack(codes: Tensor) -> Tensor:
    """Integers from -8 to 7, two to a byte: [..., n] in int8 -> [..., n / 2] in uint8."""
    halves = codes.view(torch.uint8) & 15
    return halves[..., ::2] | (halves[..., 1::2] << 4)


def unpack(payload: Tensor) -> Tensor:
    """The reverse of `pack`."""
    halves = torch.stack((payload & 15, payload >> 4), -1).flatten(-2).to(torch.int8)
    return (halves ^ 8) - 8


def reduce_scatter_on_nodes(x: Tensor, block: int, intra: ProcessGroup, inter: ProcessGroup) -> Tensor:
    """The sum of this rank's chunk: in 8 bits within the node, in 4 bits between nodes.

    Args:
        x: [N·L·m], where `block` divides m, on each of L ranks of N nodes. Chunk i is summed on rank i; those of a node
            follow each other.
        block: numbers that share a scale.
        intra: the L ranks of this node.
        inter: the ranks that have this one's number on the N nodes.

    Returns:
        [m] in float32, this rank's chunk of the sum.
    """
    nodes, ranks = dist.get_world_size(inter), dist.get_world_size(intra)
    for_each = x.view(nodes, ranks, -1).transpose(0, 1).reshape(-1)
    codes, scales = quantise(for_each, block, 127)
    of_node = dequantise(_exchanged(codes, intra), _exchanged(scales, intra)).view(ranks, -1).sum(0)
    codes, scales = quantise(of_node, block, 7)
    codes = unpack(_exchanged(pack(codes), inter))
    return dequantise(codes, _exchanged(scales, inter)).view(nodes, -1).sum(0)


def _exchanged(x: Tensor, group: ProcessGroup) -> Tensor:
    """Chunk i of all ranks' `x` on rank i."""
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received
