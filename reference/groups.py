"""The process groups of one rank of a mesh: with which ranks it shares what."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import Communicate, over
from reference.mesh import Mesh


class Groups:
    """Groups along the axes of a mesh, each made when it is first asked for.

    Making groups takes all ranks: so all of them ask for the same axes in the same order.

    Args:
        group: the ranks of the mesh.
        mesh: how they are arranged.
        communicate: makes the communicator of a group, through which strategies talk.
    """

    def __init__(self, group: ProcessGroup, mesh: Mesh, communicate: Communicate = over) -> None:
        self.all, self.mesh, self.at = group, mesh, mesh.coordinates(group.rank())
        self._communicate = communicate
        self._made: dict[tuple[str, ...], ProcessGroup] = {}
        self._beside: dict[str, ProcessGroup] = {}
        self._communicators: dict[ProcessGroup, Communicator] = {}

    def along(self, *axes: str) -> ProcessGroup:
        """The ranks that differ from this one along these axes alone. Axes of one rank change nothing."""
        if len(axes) == 1 and axes[0] in self._beside:
            return self._beside[axes[0]]
        axes = tuple(name for name in self.mesh.names if name in axes and self.mesh.size(name) > 1)
        if self.mesh.size(*axes) == len(self.mesh.ranks):
            return self.all
        if axes not in self._made:
            self._made[axes] = mine_of(self.all, self.mesh.groups(*axes))
        return self._made[axes]

    def communicator(self, *axes: str) -> Communicator:
        """What strategies take to talk to the ranks that are `along` these axes."""
        return self.communicator_of(self.along(*axes))

    def communicator_of(self, group: ProcessGroup) -> Communicator:
        """The communicator of a group of this mesh: one, however often it is asked for."""
        if group not in self._communicators:
            self._communicators[group] = self._communicate(group)
        return self._communicators[group]

    def add(self, name: str, group: ProcessGroup) -> None:
        """Let a group that no axes make, such as the two ends of a pipeline, go by a name of its own."""
        self._beside[name] = group

    def is_first(self, axes: Iterable[str]) -> bool:
        """Whether this rank is the first along each of these axes."""
        return all(self._beside[axis].rank() == 0 if axis in self._beside else self.at[axis] == 0 for axis in axes)

    def is_beside(self, name: str) -> bool:
        """Whether that is a group that no axes make."""
        return name in self._beside

    def connect(self, device: torch.device) -> None:
        """Use each group that has been made once, in one order on all ranks, and wait: afterwards all are connected.

        Groups along one axis share no rank, so each can be waited for. See `reference.on_gpus` for why not later.

        Args:
            device: where tensors are.
        """
        for group in dict.fromkeys((self.all, *self._made.values(), *self._beside.values())):
            said = torch.ones(1, device=device)
            dist.all_reduce(said, group=group)
            said.item()  # which waits for the GPU


def mine_of(group: ProcessGroup, groups: Sequence[tuple[int, ...]]) -> ProcessGroup | None:
    """Make groups of ranks of `group`, whose ranks all call this; returns the one that this rank is in, if any.

    Where `group` is not all ranks, others make groups at the same time, and no rank waits for those of others.
    """
    members, mine = dist.get_process_group_ranks(group), None
    is_part = group.size() < dist.get_world_size()
    for ranks in groups:
        if is_part and group.rank() not in ranks:
            continue
        made = dist.new_group([members[rank] for rank in ranks], use_local_synchronization=is_part)
        if group.rank() in ranks:
            mine = made
    return mine
