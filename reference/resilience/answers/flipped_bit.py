"""Where a bit has flipped, from two checksums: a sum of bits, and one in which each place has its own weight.

A flipped bit k of element i changes the first sum by 2^k and the second one by i · 2^k, both up or both down. Their
ratio is the place. Huang & Abraham 1984, "Algorithm-based fault tolerance for matrix operations", sec. III.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def find_flip(x: Tensor, group: ProcessGroup) -> tuple[int, int, int] | None:
    """Find the bit that is not as it is on the other ranks: two integers travel from each rank to the others.

    Args:
        x: [N] in float32, a replica. At most one bit of one rank is not as it should be.
        group: n ranks, 3 or more.

    Returns:
        The group rank, the place in `x` and the bit, of which 31 is the sign; None where all replicas are equal.
    """
    bits = x.view(torch.int32).long()
    mine = torch.stack([bits.sum(), (bits * torch.arange(len(bits))).sum()])
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(told, mine, group=group)
    pairs = [tuple(each.tolist()) for each in told]
    usual, _ = Counter(pairs).most_common(1)[0]
    for rank, pair in enumerate(pairs):
        if pair != usual:
            change, weighted = pair[0] - usual[0], pair[1] - usual[1]
            return rank, weighted // change, abs(change).bit_length() - 1
    return None
