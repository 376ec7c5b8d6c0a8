"""One rank of any number, alone: all groups that it is in, and communicators that send nothing and count everything.

torch's process group "fake" stands for ranks that do not exist: whatever is said returns at once. A world of 16,384
ranks takes milliseconds, since a rank makes its own groups alone, and none of the others'.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.reduction import SUM
from reference.errors import BadInput
from reference.groups import Groups
from reference.mesh import GRADIENTS, TENSOR, Mesh

from .meter import Meter

ROUTER = "router"  # counts of choices, among ranks of several axes

AXES_OF = {
    "tp": {*TENSOR},
    "cp": {"cp", "cp_ring", "cp_heads"},
    "dp": {*GRADIENTS},
    "pp": {"pp", "pp_ends"},
    "ep": {"ep", "ep_nodes", "ep_inside"},
    "etp": {"etp"},
    "edp": {"dp_replicate", "edp"},
}
"""What is said along these axes of a mesh counts under one name: of those that fit, the first."""


@contextmanager
def world(ranks: int, rank: int = 0) -> Iterator[ProcessGroup]:
    """This process is one of so many ranks.

    Raises:
        BadInput: if it is one already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # and with it the backend

    if dist.is_initialized():
        raise BadInput("this process is a rank of a process group already: count before it is, or in another process")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class OwnGroups(Groups):
    """The groups of one rank, made without the others.

    Args:
        group, mesh: as for `Groups`.
        meter: counts what is said in them.
    """

    def __init__(self, group: ProcessGroup, mesh: Mesh, meter: Meter) -> None:
        super().__init__(group, mesh)
        self._meter, self._rank = meter, group.rank()

    def along(self, *axes: str) -> ProcessGroup:
        """As for `Groups`."""
        if len(axes) == 1 and self.is_beside(axes[0]):
            return super().along(*axes)
        axes = tuple(name for name in self.mesh.names if name in axes and self.mesh.size(name) > 1)
        if self.mesh.size(*axes) == len(self.mesh.ranks):
            return self.all
        if axes not in self._made:
            self._made[axes] = self.of_ranks(self.mesh.group_of(self._rank, *axes))
        return self._made[axes]

    def communicator(self, *axes: str) -> Communicator:
        """As for `Groups`."""
        group = self.along(*axes)
        if group not in self._communicators:
            several = {axis for axis in axes if self.is_beside(axis) or self.mesh.size(axis) > 1}
            name = next((name for name, known in AXES_OF.items() if several <= known), ROUTER)
            self._communicators[group] = Counting(group, name, self._meter)
        return self._communicators[group]

    def add_family(self, mesh: Mesh, axis: str) -> None:
        """A group by a name of its own, along an axis of another view of the ranks."""
        self.add(axis, self.of_ranks(mesh.group_of(self._rank, axis)))

    def of_ranks(self, ranks: Sequence[int]) -> ProcessGroup:
        """A group of these ranks, this one among them."""
        return dist.new_group(list(ranks))


class Counting(Communicator):
    """Says nothing, and tells a meter what a rank would send, with collectives around rings.

    What other ranks would have answered is not known: tensors on the meta device have no values. Counts of rows are
    the exception, since shapes follow from them: there all ranks are assumed to say the same.

    Args:
        group: n ranks.
        axis: under which name it counts.
        meter: counts.
    """

    def __init__(self, group: ProcessGroup, axis: str, meter: Meter) -> None:
        super().__init__(group)
        self.axis, self.meter = axis, meter

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = SUM) -> None:
        self._pass(2, x)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self._pass(1, out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self._pass(1, x)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self._pass(1, x)

    def broadcast(self, x: Tensor, root: int) -> None:
        self._pass(1, x)

    def all_to_all_uneven(self, x: Tensor, out: Tensor, sent: Sequence[int], received: Sequence[int]) -> None:
        of_row = x.nbytes / len(x) if len(x) else 0
        if self.size() > 1:
            self.meter.say(self.axis, of_row * (sum(sent) - sent[self.rank()]), self.size() - 1)
        if not x.is_meta:
            out[:] = x[self.rank()]

    def start_send(self, x: Tensor, target: int) -> Finish:
        self.meter.say(self.axis, x.nbytes)
        return lambda: x

    def start_receive(self, x: Tensor, source: int) -> Finish:
        return lambda: x

    def start_exchange(self, outgoing: Tensor, target: int, incoming: Tensor, source: int) -> Finish:
        self.meter.say(self.axis, outgoing.nbytes)
        return lambda: incoming

    def _pass(self, passes: int, whole: Tensor) -> None:
        """Each rank sends (n-1)/n of a tensor in each pass around a ring."""
        n = self.size()
        if n > 1:
            self.meter.say(self.axis, passes * whole.nbytes * (n - 1) / n, passes * (n - 1))
