"""torch DTensor: tensor parallelism, with and without sequence parallelism, by a plan of styles for each module.

Megatron-LM's cut (Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198) in the words of
`torch.distributed.tensor.parallel`: the first matrices of a pair `ColwiseParallel`, the second `RowwiseParallel`, norms
`SequenceParallel`. Heads are counted from the tensors that are there, so the model's code stays as it is.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from reference.frameworks.plain import Course

COLUMNS = "attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up"
ROWS = "attention.output", "feed_forward.down"


def losses(course: Course, feature: str) -> Iterator[float]:
    """`tp` or `sp`. All ranks read the whole batch."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = split(course.model(), mesh, feature == "sp")
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def split(model: nn.Module, mesh: DeviceMesh, slices: bool) -> nn.Module:
    """Give each linear layer its style; `slices` leaves a rank its tokens alone between the pairs of matrices."""
    outside = Shard(1) if slices else Replicate()
    plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel(output_layouts=outside))
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "head": ColwiseParallel(input_layouts=outside, output_layouts=Replicate()),
    }
    if slices:
        gather = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
        alone = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        plan |= {"attention": gather, "feed_forward": alone}
        plan |= dict.fromkeys(("attention_norm", "feed_forward_norm"), SequenceParallel(use_local_output=True))
        ends |= {"norm": SequenceParallel(use_local_output=True)}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return parallelize_module(model, mesh, ends)
