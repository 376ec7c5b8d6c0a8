"""What stages hand to each other: activations forward, gradients backward.

Receives are begun before their messages are needed, where a program says so, and the sender continues. Only when a
channel has more messages under way than its receiver has room for, it waits for the oldest: that keeps no rank from
ending, as `validate` has proved, and what has left need not be kept.

Nothing but tensors is sent, except once: the first activation of a stage on a channel is preceded by its shape and
dtype, and until then nothing can be received ahead. So in the first step no rank waits for room.

Ranks of a tensor axis all have the same activation. Where they are given (`copies`), each sends an n-th of it to its
counterpart, and those who receive gather it among themselves: fewer bytes between nodes, more within one (Narayanan et
al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", sec. 4.1).
"""

from collections import defaultdict, deque
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.default import over
from reference.errors import BadInput

from .passes import Channel, Receive, Send
from .schedule import Schedule
from .simulate import Result

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST_DIMS = 6
MessageSpec = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype."""


class Messages:
    """The messages of one rank, in any number of steps. All micro-batches of all steps have one shape and dtype.

    Args:
        schedule: that all ranks follow.
        group: the ranks of the pipeline.
        device: where tensors are.
        ahead: receives that are begun on each channel before they are needed.
        channels: a group of its two ends for each channel; all messages go through `group` without it, which is enough
            for gloo. See `ordering` for what NCCL needs.
        copies: ranks that send and receive the same.
    """

    def __init__(
        self,
        schedule: Schedule,
        group: ProcessGroup | Communicator,
        device: torch.device,
        ahead: int,
        channels: Mapping[Channel, ProcessGroup | Communicator] | None = None,
        copies: ProcessGroup | Communicator | None = None,
    ) -> None:
        self._schedule, self._pipeline, self._device, self._ahead = schedule, over(group), device, ahead
        self._channels = {channel: over(ends) for channel, ends in (channels or {}).items()}
        self._copies = over(copies) if copies is not None else None
        self._rank = group.rank()
        self._specs: dict[int, MessageSpec] = {}  # of what each stage makes, as far as it is known here
        self._told: set[tuple[int, Channel]] = set()  # which channel was told, for which stage
        self._all_known = False  # to all ranks
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._here: dict[Result, Tensor] = {}
        self._begun: dict[Result, tuple[Tensor, Finish]] = {}
        self._put_off: defaultdict[Channel, deque[Result]] = defaultdict(deque)
        self._leaving: defaultdict[Channel, deque[Finish]] = defaultdict(deque)

    def end(self) -> None:
        """A step is over: wait until everything has left."""
        for channel in self._leaving:
            self._wait_for_all_but(0, channel)
        self._all_known = True

    def keep(self, result: Result, x: Tensor) -> None:
        """Have what this rank has made ready, for its own use or for `send`."""
        self._here[result] = x

    def drop(self, result: Result | None) -> None:
        """Forget what this rank has made, if it has."""
        self._here.pop(result, None)

    def take(self, result: Result) -> Tensor:
        """What an action needs, when it is here."""
        if result in self._here:
            return self._here.pop(result)
        put_off = self._put_off[Channel(self._schedule.placement[result.stage], self._rank)]
        while result not in self._begun:
            self._begin(put_off.popleft())
        x, finish = self._begun.pop(result)
        finish()
        if self._copies is not None:
            self._copies.all_gather(self._slice(x), x.view(-1))
        return x

    def send(self, step: Send) -> None:
        """Let a result leave.

        Raises:
            BadInput: if it has another shape or dtype than the micro-batches before it.
        """
        x, result = self._here.pop(step.result).contiguous(), step.result
        channel = Channel(self._rank, step.to)
        if not result.is_gradient:
            form = tuple(x.shape), x.dtype
            if (known := self._specs.setdefault(result.stage, form)) != form:
                made, before = (f"{list(shape)} of {dtype}" for shape, dtype in (form, known))
                raise BadInput(f"stage {result.stage} makes {made}, after {before}: all micro-batches must be alike")
            if (result.stage, channel) not in self._told:
                self._told.add((result.stage, channel))
                self._leave(described(x), channel)
        self._leave(self._slice(x), channel)

    def receive(self, step: Receive) -> None:
        """Begin to receive, or, where shape or dtype is not known yet, put it off until it is needed."""
        put_off = self._put_off[Channel(step.source, self._rank)]
        if put_off or self._like(step.result) not in self._specs:
            put_off.append(step.result)
        else:
            self._begin(step.result)

    def _begin(self, result: Result) -> None:
        channel = Channel(self._schedule.placement[result.stage], self._rank)
        way, source = self._way(channel)
        if (stage := self._like(result)) not in self._specs:
            header = torch.empty(MOST_DIMS + 2, dtype=torch.int64, device=self._device)
            self._specs[stage] = spec_of_header(way.start_receive(header, source)())
        shape, dtype = self._specs[stage]
        x = torch.empty(shape, dtype=dtype, device=self._device)
        self._begun[result] = x, way.start_receive(self._slice(x), source)

    def _leave(self, x: Tensor, channel: Channel) -> None:
        way, target = self._way(channel)
        self._leaving[channel].append(way.start_send(x, target))
        if self._all_known:
            self._wait_for_all_but(self._ahead + 1, channel)

    def _wait_for_all_but(self, left: int, channel: Channel) -> None:
        while len(self._leaving[channel]) > left:
            self._leaving[channel].popleft()()

    def _way(self, channel: Channel) -> tuple[Communicator, int]:
        """The communicator that messages of a channel go through, and the rank in it of the other end."""
        if channel in self._channels:
            ends = self._channels[channel]
            return ends, 1 - ends.rank()
        return self._pipeline, channel.target if channel.source == self._rank else channel.source

    def _slice(self, x: Tensor) -> Tensor:
        """What of it this rank sends, or receives: a view."""
        if self._copies is None:
            return x
        return x.view(-1).view(self._copies.size(), -1)[self._copies.rank()]

    def _like(self, result: Result) -> int:
        """The stage whose output has this form: the gradient of an input is like what the stage before has made."""
        return self._schedule.before(result.stage, result.micro_batch) if result.is_gradient else result.stage


def described(x: Tensor) -> Tensor:
    """Shape and dtype as numbers: dims, dtype, sizes.

    Raises:
        BadInput: if there are too many dimensions, or it is of a dtype that stages do not exchange.
    """
    if x.dtype not in DTYPES or x.dim() > MOST_DIMS:
        dtypes = ", ".join(map(str, DTYPES))
        raise BadInput(f"stages exchange {dtypes} of up to {MOST_DIMS} dimensions, not {x.dtype} of {x.dim()}")
    sizes = [*x.shape, *[0] * (MOST_DIMS - x.dim())]
    return torch.tensor([x.dim(), DTYPES.index(x.dtype), *sizes], dtype=torch.int64, device=x.device)


def spec_of_header(header: Tensor) -> MessageSpec:
    """What `described` has said."""
    dims, dtype, *sizes = header.tolist()
    return tuple(sizes[:dims]), DTYPES[dtype]
