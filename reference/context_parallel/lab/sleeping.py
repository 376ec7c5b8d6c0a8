"""A ring whose ranks sleep instead of computing: which of them works when, and for which one all others wait.

Where ranks share few cores, a rank that waits leaves its core to another, and an uneven layout does not show. Sleeping
takes no core. It is `RingAttention` that runs here, with its messages and its pieces: only that before a rank computes
the pieces of a block, it sleeps for as long as they would take.

The same program runs by two clocks. By the machine's own it is *measured*. By a virtual one, which nothing but sleep
and messages moves, it is *replayed*, and takes what it should take to the nanosecond.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.communicator import Communicator, Finish, Native
from reference.context_parallel.layouts import Layout
from reference.context_parallel.ring import RingAttention
from reference.context_parallel.tokens import CAUSAL, AttentionPiece, Mask, Tokens
from reference.trace.activity import Activity, Doing

BACKWARD = 2.5  # times forward: five products of matrices where forward has two (Dao 2023, "FlashAttention-2")
ROUNDS = 3  # of which `measured` keeps one

Cost = Callable[[AttentionPiece], int]
"""How many units a piece takes."""


def pairs(piece: AttentionPiece) -> int:
    """A kernel that leaves out what the mask forbids: a triangle costs half."""
    return piece.pairs


def area(piece: AttentionPiece) -> int:
    """A kernel that computes whole blocks and masks them afterwards: a triangle costs as much as a square."""
    rows, columns = piece.shape
    return rows * columns


class Clock(Protocol):
    """What a run asks of a clock. The module `time` is one."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Return so much later."""


class VirtualClock:
    """A rank's clock, moved by its own sleep and by what comes from ranks whose clocks are ahead."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Seconds slept and waited for."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move it."""
        self._now += seconds


class Dated(Native):
    """Messages that carry the moment at which their sender was ready, by its virtual clock.

    A message leaves when both its ranks are ready for it, and takes its time: the receiver's clock is then at least
    that far (Lamport 1978, "Time, clocks, and the ordering of events in a distributed system").

    Args:
        group: n ranks.
        clock: of this rank.
        seconds: that a message takes.
    """

    def __init__(self, group: dist.ProcessGroup, clock: VirtualClock, seconds: float) -> None:
        super().__init__(group)
        self.clock, self.seconds = clock, seconds

    def start_exchange(self, outgoing: Tensor, target: int, incoming: Tensor, source: int) -> Finish:
        """As for `Communicator`; when it is finished, the clock shows when that would be."""
        ready = self.clock.monotonic()
        theirs = torch.empty(1, dtype=torch.float64)
        dated = super().start_exchange(torch.full_like(theirs, ready), target, theirs, source)
        arrives = super().start_exchange(outgoing, target, incoming, source)

        def finish() -> Tensor:
            moment = max(ready, dated().item()) + self.seconds
            self.clock.sleep(max(0.0, moment - self.clock.monotonic()))
            return arrives()

        return finish


class SleepingRing(RingAttention):
    """A ring that sleeps through its pieces, and notes when.

    Args:
        communicator, tokens: as for `BlockAttention`.
        cost: of a piece.
        seconds: that a unit of it takes forward.
        clock: by which it sleeps.
    """

    def __init__(
        self, communicator: Communicator, tokens: tuple[Tokens, ...], cost: Cost, seconds: float, clock: Clock
    ) -> None:
        super().__init__(communicator, tokens)
        self.cost, self.seconds, self.clock = cost, seconds, clock
        self.doing, self.activities = Doing.FORWARD, []

    def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """As for `RingAttention`."""
        self.doing = Doing.FORWARD
        return super().forward(*arguments)

    def backward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """As for `RingAttention`."""
        self.doing = Doing.BACKWARD
        return super().backward(*arguments)

    def _pieces(self, step: int, mask: Mask) -> tuple[AttentionPiece, ...]:
        """What there is to compute in a step, and the time that it takes."""
        found = super()._pieces(step, mask)
        units = sum(map(self.cost, found)) * (BACKWARD if self.doing is Doing.BACKWARD else 1)
        begin = self.clock.monotonic()
        if units:
            self.clock.sleep(units * self.seconds)
            label = f"block {(self.rank - step) % self.ranks}"
            self.activities.append(Activity(self.doing, label, begin, self.clock.monotonic()))
        return found


@dataclass(frozen=True)
class SleptRing:
    """A forward and a backward that ranks have slept through.

    Attributes:
        ranks: what each of them did when, in seconds from the beginning.
    """

    ranks: tuple[tuple[Activity, ...], ...]

    @property
    def seconds(self) -> float:
        """From the first block to the last."""
        return max(activity.end for own in self.ranks for activity in own)

    @property
    def efficiency(self) -> float:
        """For what share of that time ranks work, on average."""
        worked = sum(activity.end - activity.begin for own in self.ranks for activity in own)
        return worked / (len(self.ranks) * self.seconds)


def measured(cluster: Cluster, held: Layout, cost: Cost, seconds: float, mask: Mask = CAUSAL) -> SleptRing:
    """Let ranks sleep by the clock of the machine, and keep the quickest of some runs; messages take what they take.

    Args:
        cluster: as many ranks as the layout has.
        held: which tokens each has.
        cost: of a piece.
        seconds: that a unit of it takes forward, and `BACKWARD` times as many backward.
        mask: who sees whom.
    """
    rounds = zip(*cluster.run(_measured_on_rank, held, cost, seconds, mask), strict=True)
    return min((_from_zero(ranks) for ranks in rounds), key=lambda run: run.seconds)


def replayed(
    cluster: Cluster, held: Layout, cost: Cost, seconds: float, mask: Mask = CAUSAL, message: float = 0.0
) -> SleptRing:
    """The same by virtual clocks, with messages that take so many seconds. Arguments as for `measured`."""
    return _from_zero(cluster.run(_replayed_on_rank, held, cost, seconds, mask, message))


def _measured_on_rank(held: Layout, cost: Cost, seconds: float, mask: Mask) -> list[list[Activity]]:
    communicator, rounds = Native(dist.group.WORLD), []
    _pass_through(SleepingRing(communicator, held.tokens, cost, 0.0, time), mask)  # connects the ranks
    for _ in range(ROUNDS):
        dist.barrier()
        rounds.append(_pass_through(SleepingRing(communicator, held.tokens, cost, seconds, time), mask))
    return rounds


def _replayed_on_rank(held: Layout, cost: Cost, seconds: float, mask: Mask, message: float) -> list[Activity]:
    clock = VirtualClock()
    communicator = Dated(dist.group.WORLD, clock, message)
    return _pass_through(SleepingRing(communicator, held.tokens, cost, seconds, clock), mask)


def _pass_through(ring: SleepingRing, mask: Mask) -> list[Activity]:
    """Forward and backward of one head with one number for each token."""
    local = sum(run.length for run in ring.own)
    query, key, value = torch.zeros(3, 1, 1, local, 1).requires_grad_()
    ring(query, key, value, mask).sum().backward()
    return ring.activities


def _from_zero(ranks: Sequence[Sequence[Activity]]) -> SleptRing:
    zero = min(activity.begin for own in ranks for activity in own)
    return SleptRing(
        tuple(tuple(Activity(a.doing, a.label, a.begin - zero, a.end - zero) for a in own) for own in ranks)
    )
