"""TorchTitan: its models and its parallelize functions, in a loop of our own.

Liang et al. 2024, arXiv:2410.06511. Its FSDP sums gradients where torch's averages them: a loss is a sum, divided by
the tokens of all ranks. It tells FSDP to divide by 1, for which NCCL has an operation and gloo has none: `fsdp` ends
there, and the others ask for sums. Its context parallelism is torch's ring, which takes over operations of GPUs alone:
`cp` ends there, and `cp-ring` has the CPU's operation handed to it.
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
    "cp": {"context_parallel_degree": 2},
    "cp-ring": {"context_parallel_degree": 2},
}


def losses(course: Course, feature: str) -> Iterator[float]:
    """A key of `DEGREES`."""
    torch._utils._get_available_device_type = lambda: "cpu"  # else it takes "cuda", also where there is none
    from torchtitan.distributed.context_parallel import prepare_context_parallel_input
    from torchtitan.models.qwen3 import parallelize_qwen3

    from reference.frameworks.adapters import context_of_dtensors, torchtitan_model

    rank, ranks, degrees = dist.get_rank(), dist.get_world_size(), DEGREES[feature]
    if feature == "cp-ring":
        context_of_dtensors.take_over()
    model, given = torchtitan_model.prepared(course, ranks, **degrees)
    model, dims = parallelize_qwen3(model, **given), given["parallel_dims"]
    for module in model.modules() if feature != "fsdp" else ():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    optimizer = course.optimizer(model.parameters())
    parts = ranks // (dims.tp * dims.cp)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank % parts, parts)
        more = {"positions": torch.arange(course.sequence).expand_as(tokens)}
        if dims.cp > 1:
            mesh, device = dims.get_mesh("cp"), torch.device("cpu")
            tokens, targets, more = prepare_context_parallel_input(tokens, targets, more, mesh, device)
        logits = model(tokens, **more)
        logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
        loss = course.loss(logits, targets)
        optimizer.zero_grad()
        (loss / (parts * dims.cp)).backward()
        optimizer.step()
        yield loss.item()
