"""What the supervisor knows of a call, and how it is spelled for people."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...trace import Event, Op, frames
from ..errors import RankError

if TYPE_CHECKING:  # it needs torch, and the owner can do without
    from ...trace.calls import Call

NEW_GROUP = "new_group"  # not an operation of a group, but every rank must take part in it all the same


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the caller's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{frames.display(self.file)}:{self.line}" if self.file else "?"


@dataclass(slots=True, eq=False)
class Post:
    """A call that a rank has posted. `matched` once everybody it needs has posted theirs."""

    rank: int
    number: int
    op: str
    function: str
    group: tuple[int, ...]
    group_name: str
    peer: int | None
    tag: int
    shape: tuple[int, ...]
    elements: int
    bytes: int
    dtype: str
    reduce: str
    strides: tuple[int, ...]  # of a tensor that is not contiguous, else ()
    sends: tuple[int, ...]  # all-to-all: elements to each rank, and
    receives: tuple[int, ...]  # elements from each rank
    width: int  # elements of one row
    place: Place
    when: float = field(default_factory=time.monotonic)  # at which the report of it came in
    matched: bool = False
    partners: tuple["Post", ...] = field(default=(), repr=False)
    source: int | None = None  # whom a receive from anybody has heard
    ordinal: int = 0  # position among the collectives of its group on its rank, from 1
    previous: "Post | None" = field(default=None, repr=False)  # the call of this rank before
    waited: list["Post"] = field(default_factory=list, repr=False)  # calls whose waits ended between the two

    @property
    def point_to_point(self) -> bool:
        return self.op in (Op.SEND, Op.RECV)

    @property
    def done(self) -> bool:
        """True where nothing that others have yet to post holds it up."""
        return self.matched or self.source is not None

    @property
    def text(self) -> str:
        """The call as its author wrote it: `recv(src=1)`, `all_reduce(sum)`."""
        return spelled(self.op, self.function, self.peer, self.tag, self.reduce)

    @property
    def where(self) -> str:
        """The group, for people."""
        return "the world" if self.group_name == "0" else f"a group of {list(self.group)}"

    def event(self, zero: float, *, complete: bool) -> Event:
        """The call as an event of a trace that begins at `zero`; its end is not known."""
        tick = 2 * self.number
        return Event(
            rank=self.rank,
            op=Op(self.op),
            group=self.group,
            peer=self.peer,
            tag=self.tag,
            shape=self.shape,
            dtype=self.dtype,
            bytes=self.bytes,
            splits=self.sends,
            reduce=self.reduce,
            file=self.place.file,
            line=self.place.line,
            posted=tick,
            completed=tick + 1 if complete else None,
            begin=self.when - zero,
            end=None,
            group_name=self.group_name,
        )


def spelled(op: str, function: str, peer: int | None, tag: int, reduce: str) -> str:
    """A call as its author wrote it."""
    if function == "batch_isend_irecv":
        function = "isend" if op == Op.SEND else "irecv"
    source = op in (Op.RECV, Op.BROADCAST, Op.SCATTER)
    arguments = [f"{'src' if source else 'dst'}={peer}"] if peer is not None or op == Op.RECV else []
    arguments += [f"tag={tag}"] * bool(tag) + [reduce] * bool(reduce)
    return f"{function}({', '.join(arguments)})"


def text_of(call: "Call") -> str:
    """As `Post.text`, for a call that may name a rank that is not there."""
    return spelled(call.op, call.function, call.root if call.peer is None else call.peer, call.tag, call.reduce)


def report(call: "Call") -> dict[str, Any]:
    """A call as the JSON that a rank sends before it makes it."""
    return {
        "post": call.number,
        "op": str(call.op),
        "function": call.function,
        "group": call.group,
        "group_name": call.group_name,
        "peer": call.peer,
        "tag": call.tag,
        "shape": call.shape,
        "elements": call.elements,
        "bytes": call.elements * call.item_size,
        "dtype": call.dtype,
        "reduce": call.reduce,
        "strides": call.strides,
        "sends": call.splits,
        "receives": call.out_splits,
        "width": call.width,
        "file": call.file,
        "line": call.line,
    }


def from_report(rank: int, report: dict[str, Any]) -> Post:
    """The post of a report. Raises KeyError, TypeError or ValueError where it is not one."""
    return Post(
        rank=rank,
        number=int(report["post"]),
        op=str(report["op"]),
        function=str(report["function"]),
        group=tuple(report["group"]),
        group_name=str(report["group_name"]),
        peer=report["peer"],
        tag=int(report["tag"]),
        shape=tuple(report["shape"]),
        elements=int(report["elements"]),
        bytes=int(report["bytes"]),
        dtype=str(report["dtype"]),
        reduce=str(report["reduce"]),
        strides=tuple(report["strides"]),
        sends=tuple(report["sends"]),
        receives=tuple(report["receives"]),
        width=int(report["width"]),
        place=Place(str(report["file"]), int(report["line"])),
    )


def blame(error: type[RankError], kind: str, post: Post, *details: str) -> RankError:
    """An error at the line of a call."""
    return error(kind, *details, rank=post.rank, file=post.place.file, line=post.place.line, call=post.text)


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1, 3`."""
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def elements_text(count: int) -> str:
    """`1 element`, `8 elements`."""
    return f"{count} element{'s' * (count != 1)}"


def wrapped(start: str, parts: list[str], width: int = 190) -> list[str]:
    """Parts behind a start, in as few lines as fit."""
    lines = [start]
    for i, part in enumerate(parts):
        piece = part + ", " * (i < len(parts) - 1)
        if len(lines[-1]) + len(piece) > width:
            lines.append("  ")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
