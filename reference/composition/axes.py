"""The process groups of one rank of a mesh: who it shares what with.

    [pipe, replicate, shard, head, copy]        replicate x shard = data, head x copy = tensor

Ranks of the tensor axis are neighbours, since they talk most, and those of the pipe are farthest apart: they talk
least. Of the data axis, hybrid sharding keeps those close together that gather parameters from each other.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.pipeline_parallel.passes import Channel, channels
from reference.pipeline_parallel.schedule import Schedule
from reference.tensor_parallel.layout import Placement
from reference.tensor_parallel.region import Region

from .mesh import Mesh

DATA = ("replicate", "shard")
TENSOR = ("head", "copy")


@dataclass(frozen=True)
class Axes:
    """The groups that one rank belongs to."""

    mesh: Mesh
    data: ProcessGroup  # reads other windows
    shards: ProcessGroup  # of these, those that hold other shards
    losses: ProcessGroup  # data and pipe together
    replicas: ProcessGroup | None = None  # of data, those that hold the same shards, with hybrid sharding
    tensor: ProcessGroup | None = None  # has other blocks of the same matrices
    copies: ProcessGroup | None = None  # of these, those that have the same key-value heads
    pipe: ProcessGroup | None = None  # has other layers

    @classmethod
    def of(cls, group: ProcessGroup, mesh: Mesh) -> "Axes":
        """Arrange the ranks of `group`, which all call this. An axis of one rank has no group, except data."""

        def along(*axes: str) -> ProcessGroup | None:
            return group_along(group, mesh, *axes) if mesh.size(*axes) > 1 else None

        data = group_along(group, mesh, *DATA)
        replicas, pipe = along("replicate"), along("pipe")
        return cls(
            mesh,
            data,
            shards=group_along(group, mesh, "shard") if replicas else data,
            losses=group_along(group, mesh, "pipe", *DATA) if pipe else data,
            replicas=replicas,
            tensor=along(*TENSOR),
            copies=along("copy"),
            pipe=pipe,
        )

    def connect(self, device: torch.device, ends: ProcessGroup | None = None) -> None:
        """Use each of these groups once, in one order for all ranks, and wait: afterwards nobody has to connect.

        Groups of one axis share no rank, so each can be waited for. See `reference.on_gpus` for why not later.

        Args:
            device: where tensors are.
            ends: a group beside the axes, see `ends_of`.
        """
        axes = (self.data, self.shards, self.losses, self.replicas, self.tensor, self.copies, self.pipe, ends)
        for group in dict.fromkeys(filter(None, axes)):
            said = torch.ones(1, device=device)
            dist.all_reduce(said, group=group)
            said.item()  # which waits for the GPU

    @property
    def tensor_rank(self) -> int:
        """Which block of the matrices is this rank's."""
        return self.tensor.rank() if self.tensor else 0

    def sees_part_of(self, where: Placement, region: Region) -> ProcessGroup | None:
        """The ranks whose gradients of a parameter add up; None where they are the same, or each has its own."""
        if where.copies == self.tensor.size():
            return self.tensor if region.slices_tokens or where.is_split else None
        return self.copies if where.copies > 1 else None


def group_along(group: ProcessGroup, mesh: Mesh, *axes: str) -> ProcessGroup:
    """The group of this rank along some axes of a mesh of the ranks of `group`, which all call this."""
    if mesh.size(*axes) == len(mesh.ranks):
        return group
    return _mine(group, mesh.groups(*axes))


def ends_of(group: ProcessGroup, mesh: Mesh, schedule: Schedule) -> ProcessGroup | None:
    """The two ranks of a pipeline that have its first and its last stage; None if one has both, or this is neither."""
    first, last = (schedule.placement[stage] for stage in (0, -1))
    if first == last:
        return None
    return _mine(group, [(ranks[first], ranks[last]) for ranks in mesh.groups("pipe")])


def channels_of(
    group: ProcessGroup, mesh: Mesh, schedule: Schedule, device: torch.device
) -> dict[Channel, ProcessGroup]:
    """A group for each channel of this rank's pipeline, which NCCL needs: see `pipeline_parallel.ordering`.

    NCCL connects two ranks when their first message begins, and whoever comes first waits for the other. In a step two
    ranks may begin by sending to each other, and wait for ever. So each channel has its first message here, in one
    order for all.

    Args:
        group: whose ranks all call this.
        mesh: of these ranks.
        schedule: of each of its pipelines.
        device: where messages are.
    """
    pipes, found = mesh.groups("pipe"), {}
    for channel in channels(schedule):
        mine = _mine(group, [tuple(ranks[end] for end in channel) for ranks in pipes])
        if mine is not None:
            found[channel], message, other = mine, torch.zeros(1, device=device), 1 - mine.rank()
            if any(group.rank() == ranks[channel.source] for ranks in pipes):
                dist.send(message, group=mine, group_dst=other)
            else:
                dist.recv(message, group=mine, group_src=other)
    return found


def _mine(group: ProcessGroup, groups: list[tuple[int, ...]]) -> ProcessGroup | None:
    """Make groups of ranks of `group`; the one that this rank is in, if any."""
    members, mine = dist.get_process_group_ranks(group), None
    for ranks in groups:
        made = dist.new_group([members[rank] for rank in ranks])
        if group.rank() in ranks:
            mine = made
    return mine
