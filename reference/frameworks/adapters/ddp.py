"""torch DistributedDataParallel: replicas, whose gradients are averaged in buckets while backward runs.

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training". Gradients are averaged, so
each rank's loss is the mean over its own tokens.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reference.frameworks.plain import Course


def losses(course: Course, feature: str) -> Iterator[float]:
    """`ddp`, or `zero1`: the same with ZeroRedundancyOptimizer."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(course.model())
    optimizer = course.optimizer(model.parameters())
    if feature == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        options = {key: optimizer.defaults[key] for key in ("lr", "betas", "weight_decay")}
        optimizer = ZeroRedundancyOptimizer(model.parameters(), type(optimizer), **options)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
