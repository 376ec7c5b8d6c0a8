"""TorchTitan: its models and its parallelize functions, in a loop of our own.

Liang et al. 2024, arXiv:2410.06511. Its FSDP sums gradients where torch's averages them: a loss is a sum, divided by
the tokens of all ranks. It tells FSDP to divide by 1, for which NCCL has an operation and gloo has none: `fsdp` ends
there, and the others ask for sums.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from reference.frameworks.plain import Course

DEGREES = {
    "fsdp": {},
    "fsdp-sums": {},
    "sp": {"tensor_parallel_degree": 2},  # slices between regions come along unless one says no
    "experts": {"expert_parallel_degree": 2},
}


def losses(course: Course, feature: str) -> Iterator[float]:
    """A key of `DEGREES`."""
    torch._utils._get_available_device_type = lambda: "cpu"  # else it takes "cuda", also where there is none
    from reference.frameworks.adapters.torchtitan_model import parallel

    rank, ranks, degrees = dist.get_rank(), dist.get_world_size(), DEGREES[feature]
    parts = ranks // degrees.get("tensor_parallel_degree", 1)
    model = parallel(course, ranks, **degrees)
    for module in model.modules() if feature != "fsdp" else ():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step, rank % parts, parts)
        logits = model(tokens, positions=torch.arange(course.sequence).expand_as(tokens))
        logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
        loss = course.loss(logits, targets)
        optimizer.zero_grad()
        (loss / parts).backward()
        optimizer.step()
        yield loss.item()
