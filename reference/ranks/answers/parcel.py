"""Send a tensor to a rank that does not know its shape: a label of fixed size goes first.

| message | bytes              |
|---------|--------------------|
| label   | 8 (1 + `MOST_DIMS`) |
| tensor  | size               |

A receive needs a buffer, so the sender must first say how large. `dist.send_object_list` works like this (a length,
then pickled bytes), and so does the first micro-batch of PyTorch's pipelining.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.errors import BadInput

MOST_DIMS = 4


def deliver(x: Tensor | None, source: int, target: int, group: ProcessGroup) -> Tensor | None:
    """Give `target` a copy of the `x` of `source`, whatever its shape.

    Args:
        x: on `source` a contiguous float32 tensor on the CPU, of at most four dimensions; None elsewhere.
        source: group rank that sends.
        target: group rank that receives, another one.
        group: the ranks that call this.

    Returns: the tensor on `target`, None elsewhere.

    Raises:
        BadInput: on `source`, if there are too many dimensions for a label.
    """
    rank = dist.get_rank(group)
    if rank == source:
        if x.dim() > MOST_DIMS:
            raise BadInput(f"a label has room for {MOST_DIMS} dimensions, not for {x.dim()}")
        label = torch.tensor([x.dim(), *x.shape] + [0] * (MOST_DIMS - x.dim()))
        dist.send(label, group=group, group_dst=target)
        dist.send(x, group=group, group_dst=target)
    if rank != target:
        return None
    label = torch.empty(1 + MOST_DIMS, dtype=torch.int64)
    dist.recv(label, group=group, group_src=source)
    dims, *sizes = label.tolist()
    received = torch.empty(sizes[:dims])
    dist.recv(received, group=group, group_src=source)
    return received
