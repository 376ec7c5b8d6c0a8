"""Ranks in a line look at both neighbours: the halo exchange of every grid that is cut into pieces.

| order of calls                                  | steps                  |
|-------------------------------------------------|------------------------|
| all four messages of a rank in one batch        | 1                      |
| even ranks turn to the right first, odd to left | 4                      |
| one pair after another along the line           | 2(n-1)                 |
| all ranks turn to the right first, and send     | none: a deadlock       |

Where a rank holds a piece of a sequence and a convolution, an attention window or a stencil reaches over the edge, the
next piece's border is fetched like this.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def look_both_ways(x: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """What the left and the right neighbour hold; zeros beyond the ends of the line.

    Args:
        x: contiguous, the same shape and dtype on every rank. It stays as it is.
        group: n ranks in a line: the neighbours of rank r are r - 1 and r + 1, where there are such ranks.

    Returns: (left, right), new tensors like `x`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    batch = []
    for neighbour, incoming in ((rank - 1, left), (rank + 1, right)):
        if 0 <= neighbour < n:
            batch.append(dist.P2POp(dist.isend, x, group=group, group_peer=neighbour))
            batch.append(dist.P2POp(dist.irecv, incoming, group=group, group_peer=neighbour))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return left, right
