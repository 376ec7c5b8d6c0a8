"""A network that takes its time, so that overlap can be measured on any machine.

A call carries its data at once, through gloo, and a wait for it returns when a link of so many bytes a second would
have brought them: one call after the other, from the moment when it was launched. So a step takes as long as the order
of its launches and waits allows, and how fast gloo is does not matter. With `VirtualTime` nor does the machine.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from reference.collectives.backend import carrier_of_world
from reference.process_group import PythonGroup, connect, register_backend
from reference.zero_bubble.lab.sleeping_pieces import Late

from .clocks import Clock

NAME = "slow"


class Link:
    """Of one rank into the network: one call after the other."""

    def __init__(self, seconds_per_byte: float, clock: Clock) -> None:
        self._seconds_per_byte, self.clock = seconds_per_byte, clock
        self._free_at = 0.0

    def carry(self, size: float) -> float:
        """Send so many bytes when all before them are gone. Returns the moment at which they are gone, too."""
        self._free_at = max(self._free_at, self.clock.monotonic()) + size * self._seconds_per_byte
        return self._free_at


class SlowGroup(PythonGroup):
    """gloo, on a link that takes its time."""

    def __init__(self, carrier: ProcessGroup, link: Link) -> None:
        super().__init__(carrier, NAME)
        self._link = link

    def _carry(self, size: float, work: Work) -> Work:
        """So many bytes leave the rank."""
        return Late(work, self._link.carry(size), self._link.clock)

    def _pass(self, whole: int, passes: int, work: Work) -> Work:
        """Everything but an n-th of `whole` bytes leaves the rank in each pass."""
        return self._carry(passes * whole * (self.size() - 1) / self.size(), work)

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        return self._carry(tensors[0].nbytes, self.carrier.send(tensors, dst, tag))

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        return self._pass(tensors[0].nbytes, 2, self.carrier.allreduce(tensors, options))

    def all_gather_single(self, output: Tensor, input: Tensor, options: Any = None) -> Work:
        return self._pass(output.nbytes, 1, self.carrier._allgather_base(output, input, *filter(None, [options])))

    _allgather_base = all_gather_single

    def reduce_scatter_single(self, output: Tensor, input: Tensor, options: Any) -> Work:
        return self._pass(input.nbytes, 1, self.carrier._reduce_scatter_base(output, input, options))

    _reduce_scatter_base = reduce_scatter_single

    def all_to_all_single(self, output: Tensor, input: Tensor, outs: list, ins: list, *options: Any) -> Work:
        return self._pass(input.nbytes, 1, self.carrier.alltoall_base(output, input, outs, ins, *options))

    alltoall_base = all_to_all_single


def slow_group(seconds_per_byte: float, clock: Clock) -> ProcessGroup:
    """All ranks, each with one link."""
    link = Link(seconds_per_byte, clock)

    def create(options: Any, _: Any) -> SlowGroup:
        return SlowGroup(connect(carrier_of_world(), options), link)

    register_backend(NAME, create)
    return dist.new_group(backend=NAME)
