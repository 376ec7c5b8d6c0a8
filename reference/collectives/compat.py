"""What torch's own groups ask of a caller: names, and where tensors must be; and on what their ranks compute.

All-gather and reduce-scatter of one flat tensor have the names that torch 2.13 gives them. torch 2.11 and 2.12 call
them `all_gather_into_tensor` and `reduce_scatter_tensor`, and are told the others by `reference.process_group`; 2.13
still knows those, with a warning.
"""

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.process_group import have_names_of_today

have_names_of_today()
all_gather_single, reduce_scatter_single = dist.all_gather_single, dist.reduce_scatter_single


def device_of(group: ProcessGroup) -> torch.device:
    """Where small tensors must be that ranks of `group` send: on the CPU, or on this rank's GPU where it is all NCCL.

    The group is asked for its ways, and not for its name: one by hand over NCCL has no way between CPUs either.
    """
    return torch.device("cpu" if torch.device("cpu") in group._device_types else "cuda")


def computes_on_gpus(group: ProcessGroup) -> bool:
    """Whether the ranks of `group` were started to compute on GPUs.

    They were, where their messages travel by NCCL, or where the group has one backend for CPUs and one for GPUs. torch
    names both then ("cpu:gloo,cuda:nccl"), and never "nccl" alone. The devices that a group serves do not tell: gloo
    alone serves "cuda", too.
    """
    backend = dist.get_backend(group)
    return backend == dist.Backend.NCCL or "cuda:" in backend
