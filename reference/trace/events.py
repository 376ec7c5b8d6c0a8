"""What one rank said: an `Event` is one call of one rank to `torch.distributed`.

Order comes from ticks, never from clocks. Each rank has one counter; it ticks when a call is posted and again when
the rank's wait for that call returns. So "this send was posted after that receive was complete" reads
`receive.completed < send.posted`, and it reads the same in every run of the same program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Self

APART = 1 << 24  # added to the tags of messages that a handmade collective is made of; callers' tags are below


class Op(StrEnum):
    """What a call asks for."""

    SEND = "send"
    RECV = "recv"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_REDUCE = "all_reduce"
    SCATTER = "scatter"
    GATHER = "gather"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"

    @property
    def point_to_point(self) -> bool:
        """True for a send or a receive, False for a collective."""
        return self in (Op.SEND, Op.RECV)


@dataclass(frozen=True, slots=True)
class Event:
    """One call that one rank made.

    `shape`, `dtype` and `bytes` describe the tensor this rank brings: the whole tensor of a broadcast, reduce,
    all-reduce or reduce-scatter; this rank's piece of a gather, scatter or all-gather; the buffer of a receive;
    the whole input of an all-to-all.
    """

    rank: int  # global rank of the caller
    op: Op
    group: tuple[int, ...]  # global ranks of the process group, in group order
    peer: int | None  # global rank: destination of a send, source of a receive, root of a rooted collective
    tag: int
    shape: tuple[int, ...]
    dtype: str  # "float32"
    bytes: int
    splits: tuple[int, ...]  # all-to-all: bytes sent to each rank of the group; otherwise ()
    reduce: str  # "sum", "avg", "max", ...; "" where nothing is reduced
    file: str  # the caller's own code, not torch's
    line: int
    posted: int  # tick of this rank at the call
    completed: int | None  # tick at which this rank's wait returned; None if it never waited
    begin: float  # seconds since the trace began, one clock for all ranks
    end: float | None
    group_name: str = ""  # tells groups of the same ranks apart

    def row(self) -> tuple[Any, ...]:
        """The fields in their order, without the rank; ready for JSON."""
        return _row(self)

    @classmethod
    def from_row(cls, rank: int, row: Sequence[Any]) -> Self:
        """The event of which a rank has sent the `row`."""
        op, *rest = row
        return cls(rank, Op(op), *(tuple(value) if isinstance(value, list) else value for value in rest))

    def since(self, zero: float) -> Self:
        """The same, with times that count from `zero`."""
        return replace(self, begin=self.begin - zero, end=None if self.end is None else self.end - zero)


_row = attrgetter(*(field.name for field in fields(Event)[1:]))
