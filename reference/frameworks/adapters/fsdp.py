"""torch FSDP, first and second generation, and hybrid sharding: each block is a unit, the rest is another.

Zhao et al. 2023, arXiv:2304.11277. `fsdp1` is FullyShardedDataParallel, which makes one flat parameter of a unit;
`fsdp2` is `fully_shard`, which cuts each parameter along its first dim; `fsdp2-kept` leaves units gathered between
forward and backward; `hsdp` shards among pairs of ranks and keeps replicas of the pairs.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from reference.frameworks.plain import Course
from reference.models.gpt import Block


def losses(course: Course, feature: str) -> Iterator[float]:
    """`fsdp1`, `fsdp2`, `fsdp2-kept` or `hsdp`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(course.model(), feature)
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def sharded(model: nn.Module, feature: str) -> nn.Module:
    """The model, with its parameters in shards."""
    if feature == "fsdp1":
        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
        )
    ranks = dist.get_world_size()
    if feature == "hsdp":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    shard = partial(fully_shard, mesh=mesh, reshard_after_forward=feature != "fsdp2-kept")
    for block in model.blocks:
        shard(block)
    return shard(model)
