"""Optimizers that need whole matrices: the way to an owner and back, and whose matrices are whose."""

import heapq

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.zero.plain_matrices import newton_schulz


def orthogonal_by_owners(
    shards: list[Tensor], shapes: list[tuple[int, int]], owners: list[int], group: ProcessGroup
) -> None:
    """Make matrices orthogonal, of which each rank has a shard: each is whole on its owner, and there alone. In place.

    Args:
        shards: of each matrix, this rank's n-th of the flat matrix; n divides the number of its elements.
        shapes: (rows, columns) of each matrix.
        owners: of each, a rank of the group.
        group: n ranks.

    `reference.zero.plain_matrices.to_its_owner`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    order = sorted(range(len(owners)), key=lambda number: owners[number])
    sizes, mine = [shards[number].numel() for number in order], [number for number in order if owners[number] == rank]
    sent = [sum(shards[number].numel() for number in order if owners[number] == owner) for owner in range(n)]
    pieces = torch.cat([shards[number] for number in order])
    arrived = pieces.new_empty(n, sent[rank])
    dist.all_to_all_single(arrived.view(-1), pieces, [sent[rank]] * n, sent, group=group)
    made, begin = torch.empty_like(arrived), 0
    for number in mine:
        own = slice(begin, begin + shards[number].numel())
        made[:, own] = newton_schulz(arrived[:, own].reshape(shapes[number])).reshape(n, -1)
        begin = own.stop
    dist.all_to_all_single(pieces, made.view(-1), sent, [sent[rank]] * n, group=group)
    for number, piece in zip(order, pieces.split(sizes), strict=True):
        shards[number].copy_(piece)


def deal_matrices(shapes: list[tuple[int, int]], owners: int) -> list[int]:
    """The owner of each matrix, so that all have about as much to compute.

    Args:
        shapes: (rows, columns) of each matrix.
        owners: how many ranks there are.

    Returns:
        For each matrix, a rank.

    Graham 1969, "Bounds on multiprocessing timing anomalies"; `reference.zero.plain_matrices.deal`.
    """
    costs = [2 * min(shape) ** 2 * max(shape) + min(shape) ** 3 for shape in shapes]
    loads, found = [(0, rank) for rank in range(owners)], [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -costs[number]):
        load, found[number] = loads[0]
        heapq.heapreplace(loads, (load + costs[number], found[number]))
    return found
