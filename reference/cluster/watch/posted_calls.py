"""What the supervisor knows of a call, and how it is spelled for people."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...trace import Event, Op, frames
from ...trace.events import APART
from ..errors import RankError

if TYPE_CHECKING:  # it needs torch, and the owner can do without
    from ...trace.calls import Call

NEW_GROUP = "new_group"  # begins the name of a group in which all ranks, or all members, meet: each must call new_group


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the caller's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{frames.display(self.file)}:{self.line}" if self.file else "?"


@dataclass(slots=True, eq=False)
class PostedCall:
    """A call that a rank has posted: its event, which it reads like, and what else there is to know of it.

    `matched` once every rank that it needs has posted its own.
    """

    event: Event
    number: int
    function: str
    strides: tuple[int, ...]  # of a tensor that is not contiguous, else ()
    pieces: tuple[int, ...]  # elements of each tensor where there are several, else ()
    receives: tuple[int, ...]  # all-to-all: bytes from each rank
    width: int  # bytes of one row
    matched: bool = False
    partners: tuple["PostedCall", ...] = field(default=(), repr=False)
    completed: int | None = None  # tick of its rank at which the wait for it returned
    end: float | None = None
    source: int | None = None  # to which a receive from any rank was resolved
    source_used: bool = False  # its caller has looked at the source
    ordinal: int = 0  # position among the collectives of its group on its rank, from 1
    previous: "PostedCall | None" = field(default=None, repr=False)  # the call of this rank before
    waited: list["PostedCall"] = field(default_factory=list, repr=False)  # calls whose waits ended between the two

    def __getattr__(self, name: str) -> Any:
        """What else the event says: `post.shape`, `post.reduce`."""
        return getattr(self.event, name)

    @property
    def place(self) -> Place:
        """Where the call stands."""
        return Place(self.event.file, self.event.line)

    @property
    def elements(self) -> int:
        """How many numbers it is about."""
        return prod(self.event.shape)

    @property
    def point_to_point(self) -> bool:
        """True for a send or a receive."""
        return self.event.op.point_to_point

    @property
    def makes_group(self) -> bool:
        """True for `new_group`."""
        return self.event.group_name.startswith(NEW_GROUP)

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
        return "the world" if self.group_name == "0" else f"group {list(self.group)}"

    @property
    def final_event(self) -> Event:
        """The event, with what is known of its end; that of a receive from any rank with its resolved source."""
        peer = self.event.peer if self.source is None else self.source
        return replace(self.event, peer=peer, completed=self.completed, end=self.end)


for name in ("rank", "op", "peer", "tag", "group", "group_name"):  # asked for a dozen times for each call: no detour
    setattr(PostedCall, name, property(attrgetter(f"event.{name}")))


def spelled(op: str, function: str, peer: int | None, tag: int, reduce: str) -> str:
    """A call as its author wrote it."""
    if function == "batch_isend_irecv":
        function = "isend" if op == Op.SEND else "irecv"
    source = op in (Op.RECV, Op.BROADCAST, Op.SCATTER)
    arguments = [f"{'src' if source else 'dst'}={peer}"] if peer is not None or op == Op.RECV else []
    arguments += [f"tag={tag}"] * (tag != 0 and tag < APART) + [reduce] * bool(reduce)
    return f"{function}({', '.join(arguments)})"


def text_of(call: "Call") -> str:
    """As `PostedCall.text`, for a call that may name a rank that is not there."""
    return spelled(call.op, call.function, call.root if call.peer is None else call.peer, call.tag, call.reduce)


def report_of(call: "Call", rank: int) -> dict[str, Any]:
    """A call as the JSON that a rank sends before it makes it."""
    return {
        "what": "post",
        "event": call.event(rank).row(),
        "number": call.number,
        "function": call.function,
        "strides": call.strides,
        "pieces": call.pieces,
        "receives": [split * call.item_size for split in call.out_splits],
        "width": call.width * call.item_size,
    }


def from_report(rank: int, report: dict[str, Any]) -> PostedCall:
    """The post of a report."""
    return PostedCall(
        event=Event.from_row(rank, report["event"]),
        number=report["number"],
        function=report["function"],
        strides=tuple(report["strides"]),
        pieces=tuple(report["pieces"]),
        receives=tuple(report["receives"]),
        width=report["width"],
    )


def blame(error: type[RankError], kind: str, post: PostedCall, *details: str) -> RankError:
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
    """Parts after a start, in as few lines as fit."""
    lines = [start]
    for i, part in enumerate(parts):
        piece = part + ", " * (i < len(parts) - 1)
        if len(lines[-1]) + len(piece) > width:
            lines.append("  ")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
