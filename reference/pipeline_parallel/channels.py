"""The process groups that a pipeline needs besides the axes of its mesh: one for each channel, and one of its ends."""

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.groups import mine_of
from reference.mesh import Mesh

from .passes import Channel, channels
from .schedule import Schedule


def ends_of(group: ProcessGroup, mesh: Mesh, schedule: Schedule) -> ProcessGroup | None:
    """The two ranks of a pipeline that have its first and its last stage; None if one has both, or this is neither."""
    first, last = (schedule.placement[stage] for stage in (0, -1))
    if first == last:
        return None
    return mine_of(group, [(ranks[first], ranks[last]) for ranks in mesh.groups("pp")])


def channels_of(
    group: ProcessGroup, mesh: Mesh, schedule: Schedule, device: torch.device
) -> dict[Channel, ProcessGroup]:
    """A group for each channel of this rank's pipeline, which NCCL needs: see `pipeline_parallel.ordering`.

    NCCL connects two ranks when their first message begins, and the first to come waits for the other. In a step two
    ranks may begin by sending to each other, and wait forever. So each channel has its first message here, in one
    order for all.

    Args:
        group: whose ranks all call this.
        mesh: of these ranks.
        schedule: of each of its pipelines.
        device: where messages are.
    """
    pipes, found = mesh.groups("pp"), {}
    for channel in channels(schedule):
        mine = mine_of(group, [tuple(ranks[end] for end in channel) for ranks in pipes])
        if mine is not None:
            found[channel], message, other = mine, torch.zeros(1, device=device), 1 - mine.rank()
            if any(group.rank() == ranks[channel.source] for ranks in pipes):
                dist.send(message, group=mine, group_dst=other)
            else:
                dist.recv(message, group=mine, group_src=other)
    return found
