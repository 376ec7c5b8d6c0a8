"""What stages hand to each other: activations forward, gradients backward.

Messages between two ranks keep their order, and both ends know it, since both know the schedule. So receives are posted
before their messages are needed, and a send never waits: the sender goes on, and looks back when the step is over.
Nothing but tensors is sent, except once: the first activation of a stage is preceded by its shape and dtype.
"""

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from .schedule import Schedule
from .simulate import Result, makes, needs
from .validate import Channel

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST_DIMS = 6
Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype."""


class Messages:
    """The messages of one rank, in any number of steps. All micro-batches have the same shape.

    Args:
        schedule: that all ranks follow.
        forward, backward: the same ranks in the same order, for activations and for gradients: NCCL runs what is said
            in one group in the order in which it was said, and the two must not wait for each other.
        device: where tensors are.
        ahead: receives that are posted on each channel before they are needed.
    """

    def __init__(
        self, schedule: Schedule, forward: ProcessGroup, backward: ProcessGroup, device: torch.device, ahead: int
    ) -> None:
        self._schedule, self._groups, self._device, self._ahead = schedule, (forward, backward), device, ahead
        self._rank = forward.rank()
        self._readers = readers(schedule)
        self._kinds: dict[int, Kind] = {}  # what each stage makes, as far as it is known here

    def begin(self) -> None:
        """A step begins."""
        self._expected = incoming(self._schedule, self._rank)
        self._posted: dict[Channel, dict[Result, tuple[Tensor, Work]]] = {channel: {} for channel in self._expected}
        self._here: dict[Result, Tensor] = {}
        self._leaving: list[tuple[Work, Tensor]] = []

    def end(self) -> None:
        """A step is over: wait until everything has left."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()

    def give(self, result: Result, x: Tensor) -> None:
        """Hand on what this rank has made: to another rank, or to itself."""
        reader = self._readers.get(result)
        if reader is None:
            return
        if reader == self._rank:
            self._here[result] = x
            return
        if not result.is_gradient and result.stage not in self._kinds:
            self._kinds[result.stage] = tuple(x.shape), x.dtype
            self._send(described(x), Channel(self._rank, reader, False))
        self._send(x.contiguous(), Channel(self._rank, reader, result.is_gradient))

    def take(self, result: Result) -> Tensor:
        """What an action needs, when it is here."""
        if result in self._here:
            return self._here.pop(result)
        channel = Channel(self._schedule.placement[result.stage], self._rank, result.is_gradient)
        posted, expected = self._posted[channel], self._expected[channel]
        while result not in posted or (expected and len(posted) <= self._ahead and self._knows(expected[0])):
            self._post(channel, expected.popleft())
        x, work = posted.pop(result)
        work.wait()
        return x

    def _post(self, channel: Channel, result: Result) -> None:
        group = self._groups[channel.is_gradient]
        if not self._knows(result):
            header = torch.empty(MOST_DIMS + 2, dtype=torch.int64, device=self._device)
            dist.recv(header, group=group, group_src=channel.source)
            self._kinds[result.stage] = kind_of(header)
        shape, dtype = self._kinds[self._like(result)]
        x = torch.empty(shape, dtype=dtype, device=self._device)
        self._posted[channel][result] = x, dist.irecv(x, group=group, group_src=channel.source)

    def _like(self, result: Result) -> int:
        """The stage whose output is of this kind: the gradient of an input is like what the stage before has made."""
        return self._schedule.before(result.stage, result.micro_batch) if result.is_gradient else result.stage

    def _knows(self, result: Result) -> bool:
        """Whether shape and dtype are known. Who waits for them waits until they are made."""
        return self._like(result) in self._kinds

    def _send(self, x: Tensor, channel: Channel) -> None:
        work = dist.isend(x, group=self._groups[channel.is_gradient], group_dst=channel.target)
        self._leaving.append((work, x))


def readers(schedule: Schedule) -> dict[Result, int]:
    """The rank that needs what another action has made, itself included."""
    return {
        needed: rank
        for rank, line in enumerate(schedule.lines)
        for action in line
        if (needed := needs(schedule, action)) and needed.stage != action.stage
    }


def incoming(schedule: Schedule, rank: int) -> dict[Channel, deque[Result]]:
    """What comes to a rank from others, in the order in which it is sent."""
    found: dict[Channel, deque[Result]] = {}
    reader = readers(schedule)
    for source, line in enumerate(schedule.lines):
        for result in map(makes, line):
            if result and source != rank and reader.get(result) == rank:
                found.setdefault(Channel(source, rank, result.is_gradient), deque()).append(result)
    return found


def described(x: Tensor) -> Tensor:
    """Shape and dtype as numbers: dims, dtype, sizes."""
    sizes = [*x.shape, *[0] * (MOST_DIMS - x.dim())]
    return torch.tensor([x.dim(), DTYPES.index(x.dtype), *sizes], dtype=torch.int64, device=x.device)


def kind_of(header: Tensor) -> Kind:
    """What `described` has said."""
    dims, dtype, *sizes = header.tolist()
    return tuple(sizes[:dims]), DTYPES[dtype]
