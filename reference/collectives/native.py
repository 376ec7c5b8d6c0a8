"""What torch's own groups ask of whoever calls them: names, and where tensors must be.

All-gather and reduce-scatter of one flat tensor have here the names that torch 2.13 gives them. torch 2.11 and 2.12
call them `all_gather_into_tensor` and `reduce_scatter_tensor`; 2.13 still does, with a warning.
"""

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

if hasattr(dist, "all_gather_single"):
    all_gather_single, reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single
else:
    all_gather_single, reduce_scatter_single = dist.all_gather_into_tensor, dist.reduce_scatter_tensor


def device_of(group: ProcessGroup) -> torch.device:
    """Where the tensors must be that ranks of `group` send: on this rank's GPU where that is NCCL, else on the CPU."""
    return torch.device("cuda" if dist.get_backend(group) == dist.Backend.NCCL else "cpu")
