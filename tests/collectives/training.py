"""A small model that PyTorch's own DDP, FSDP2 and 1F1B train on any process group, in float64.

Each training returns this rank's loss of every step.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, WIDTH, BLOCKS = 4, 8, 5, 4


def model(device: str) -> nn.Sequential:
    """The same on every rank. Sizes that do not divide by 2, 3 or 4."""
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks).double().to(device)


def batch(step: int, rank: int, device: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one rank."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2, ROWS, WIDTH, generator=generator).double().to(device).unbind()


def data_parallel(group: dist.ProcessGroup, device: str = "cpu") -> list[float]:
    """DistributedDataParallel with buckets of a few parameters."""
    return trained(DistributedDataParallel(model(device), process_group=group, bucket_cap_mb=0.0005), group, device)


def fully_sharded(group: dist.ProcessGroup, device: str = "cpu") -> list[float]:
    """fully_shard of every block and of the whole."""
    whole, mesh = model(device), DeviceMesh.from_group(group, device, mesh_dim_names=("shard",))
    for block in whole:
        fully_shard(block, mesh=mesh)
    return trained(fully_shard(whole, mesh=mesh), group, device)


def trained(parallel: nn.Module, group: dist.ProcessGroup, device: str) -> list[float]:
    """Some steps of Adam."""
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank(group), device)
        loss = nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipelined(group: dist.ProcessGroup, device: str = "cpu") -> list[float]:
    """Schedule1F1B with four micro-batches. The last stage has the losses."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    blocks = nn.Sequential(*(block for i, block in enumerate(model(device)) if i * n // BLOCKS == rank))
    stage = PipelineStage(blocks, rank, n, torch.device(device), group=group)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    optimizer, losses = torch.optim.Adam(blocks.parameters(), lr=0.01), []
    for step in range(STEPS):
        x, y = batch(step, 0, device)
        optimizer.zero_grad()
        of_step: list[Tensor] = []
        schedule.step(*([x] if rank == 0 else []), target=y if rank == n - 1 else None, losses=of_step)
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_step))
    return losses


TRAININGS: dict[str, Callable[..., list[float]]] = {
    "DDP": data_parallel,
    "FSDP2": fully_sharded,
    "1F1B": pipelined,
}
