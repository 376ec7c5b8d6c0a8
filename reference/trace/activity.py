"""What a rank does when, on two lanes: what it computes, and which collectives are under way meanwhile.

A trace knows when a rank calls and when it waits. Where communication hides behind work, that is not enough: a bucket
that is launched early and waited for late may have been done long before. So this looks at both sides: hooks say when
modules compute, and each collective says itself when it is done.

    def step():                                                   # runs on every rank, in `cluster.trace`
        watch = Watch({"block 0": model.blocks[0], ...})
        with watch.recording():
            watch.backward(model(x).sum())
            with watch.span(Doing.OPTIMIZER, "step"):
                optimizer.step()
        return watch.activities
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from torch import Tensor, nn
from torch.distributed import Work
from torch.utils.hooks import RemovableHandle

from .calls import Call
from .tap import world_recorder


class Doing(StrEnum):
    """What a span of time goes into."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT_GRADIENT = "weight gradient"  # where it is distinguished from the rest of backward
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Activity:
    """One rank from `begin` to `end`, in seconds of one clock for all ranks of a machine."""

    doing: Doing
    label: str  # a module's name, or "all_reduce"
    begin: float
    end: float
    bytes: int = 0  # that a collective is about


def from_zero(own: Sequence[Activity]) -> list[Activity]:
    """The same, by a clock that shows 0 when the first of them begins: to lay one run beside another."""
    zero = min(activity.begin for activity in own)
    return [replace(activity, begin=activity.begin - zero, end=activity.end - zero) for activity in own]


class Watch:
    """Notes what this rank does. Spans of computing do not overlap each other; those of communication overlap all.

    Args:
        modules: whose forward and backward are noted, by the name they shall have. None of them inside another.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.activities: list[Activity] = []
        self._modules = modules
        self._computing: tuple[Doing, str, float] | None = None
        self._listeners: list[threading.Thread] = []
        self._messages: list[Call] = []  # from one rank to another

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what happens inside; call it in `cluster.trace`: in `cluster.run` collectives are not heard.

        Ends when the collectives that began inside are done. A message from one rank to another is noted until its
        wait has returned, which may be later than it came.

        Raises:
            RuntimeError: on what is no rank of a `Cluster`.
        """
        recorder = world_recorder()
        make = recorder.make
        recorder.make = partial(self._make, make)
        handles = [handle for name, module in self._modules.items() for handle in self._hooks(name, module)]
        try:
            yield
            for listener in self._listeners:
                listener.join()
            for call in self._messages:
                if call.end is not None:
                    self._note(call, call.begin, call.end)
        finally:
            recorder.make = make
            for handle in handles:
                handle.remove()

    @contextmanager
    def span(self, doing: Doing, label: str) -> Iterator[None]:
        """Note that this rank does this meanwhile."""
        self._begin(doing, label)
        yield
        self._end()

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()`, from the last module to the first: each ends when the gradient of its input is known."""
        loss.backward()
        self._end()

    def _hooks(self, name: str, module: nn.Module) -> list[RemovableHandle]:
        def enter(module: nn.Module, inputs: object) -> None:
            self._begin(Doing.FORWARD, name)

        def leave(module: nn.Module, inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: self._end())  # before the hooks of others, which may wait

        def left(module: nn.Module, inputs: object, output: Tensor) -> None:
            self._end()
            if output.requires_grad:
                output.register_hook(lambda gradient: self._begin(Doing.BACKWARD, name))

        return [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, prepend=True),
            module.register_forward_hook(left),
        ]

    def _begin(self, doing: Doing, label: str) -> None:
        self._end()
        self._computing = doing, label, time.monotonic()

    def _end(self) -> None:
        if self._computing:
            self.activities.append(Activity(*self._computing, time.monotonic()))
            self._computing = None

    def _make(self, make: Callable[[Call, Callable[[], Work]], Work], call: Call, run: Callable[[], Work]) -> Work:
        begin, work = time.monotonic(), make(call, run)

        def listen() -> None:  # not all requests of gloo have futures
            work.wait()
            self._note(call, begin, time.monotonic())

        if call.op.point_to_point:  # gloo wakes up one of those who wait for a message: let it be the caller
            self._messages.append(call)
        else:
            self._listeners.append(threading.Thread(target=listen, daemon=True))
            self._listeners[-1].start()
        return work

    def _note(self, call: Call, begin: float, end: float) -> None:
        size = call.elements * call.item_size
        self.activities.append(Activity(Doing.COMMUNICATION, call.function or str(call.op), begin, end, size))
