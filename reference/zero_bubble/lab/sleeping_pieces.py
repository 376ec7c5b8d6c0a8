"""A forward and a backward whose pieces sleep and whose messages take their time: what hides behind what, anywhere.

On a GPU neither computing nor sending takes the processor. Here it is the same: a piece sleeps, and a message, though
it is done at once, counts as in flight until its time has come. So a run takes as long as the order of calls and
waits makes it, on a machine with few cores, too. What is called, and which rank waits for which, is real.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from reference.process_group import called
from reference.trace.activity import Activity, Doing, Watch, from_zero
from reference.zero_bubble.answers.overlap import Piece

Pair = Callable[[Sequence[Piece], Sequence[Piece], Tensor, Tensor, ProcessGroup], tuple[Tensor, Tensor]]
"""Takes one micro-batch forward and another one backward, as `overlap_by_hand.overlapped_pair` does."""


@dataclass(frozen=True)
class Layers:
    """What a pair goes through."""

    pieces: int  # of the forward, and of the backward
    forward: float  # seconds of a piece
    backward: float
    message: float  # seconds of an all-to-all


def sleep_on_rank(pair: Pair, layers: Layers, rounds: int = 3) -> list[Activity]:
    """What this rank did when, in the quickest of some rounds; to be run on every rank, inside `cluster.trace`."""
    runs = [_round(pair, layers) for _ in range(rounds)]
    return min(runs, key=lambda own: max(activity.end for activity in own))


def one_by_one(
    forward: Sequence[Piece], backward: Sequence[Piece], x: Tensor, gradient: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """A pair in which nothing hides: each message is waited for at once."""
    for piece in forward:
        x = _exchanged(piece(x), group)
    for piece in backward:
        gradient = _exchanged(piece(gradient), group)
    return x, gradient


def _exchanged(x: Tensor, group: ProcessGroup) -> Tensor:
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


def _round(pair: Pair, layers: Layers) -> list[Activity]:
    watch = Watch({})

    def piece(doing: Doing, seconds: float) -> Piece:
        def compute(x: Tensor) -> Tensor:
            with watch.span(doing, doing.value):
                time.sleep(seconds)
            return x.clone()

        return compute

    forward = [piece(Doing.FORWARD, layers.forward)] * layers.pieces
    backward = [piece(Doing.BACKWARD, layers.backward)] * layers.pieces
    x, gradient = torch.zeros(2, dist.get_world_size(), 1)
    dist.barrier()
    with _slow(layers.message), watch.recording():
        pair(forward, backward, x, gradient, dist.group.WORLD)
    return [replace(activity, bytes=0) for activity in from_zero(watch.activities)]  # their size says nothing here


@called(Work)
class Late(Work):
    """A call whose wait does not return before a moment.

    Args:
        work: the call.
        moment: of the clock, in seconds.
        clock: has `monotonic` and `sleep`, as `time` has.
    """

    def __init__(self, work: Work, moment: float, clock: Any = time) -> None:
        super().__init__()
        self._work, self._moment, self._clock = work, moment, clock

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it is done, and the moment has come."""
        self._work.wait()
        self._clock.sleep(max(0.0, self._moment - self._clock.monotonic()))
        return True


@contextmanager
def _slow(seconds: float) -> Iterator[None]:
    """Let every call inside take so long."""
    recorder = dist.group.WORLD.recorder
    make = recorder.make
    recorder.make = lambda call, run: Late(make(call, run), time.monotonic() + seconds)
    try:
        yield
    finally:
        recorder.make = make
