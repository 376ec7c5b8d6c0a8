"""The few places where torch.distributed says nothing to a process group, and so nothing to the tap."""

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...trace import Op, frames
from ...trace.calls import Call
from ..errors import GroupError
from .posted_calls import NEW_GROUP, report_of


class Listener(Protocol):
    """Receives the events that the patches see."""

    rank: int

    def report(self, message: dict[str, Any]) -> None: ...


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def watched_groups(listener: Listener) -> Iterator[None]:
    """Report `new_group`, in which every rank must take part; refuse calls of ranks outside a group."""
    create = c10d._new_group_with_tag
    signature = inspect.signature(create)
    numbers = count(-1, -1)

    def new_group(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        asked = given.arguments
        if asked["ranks"] is not None:
            asked["ranks"] = [int(rank) for rank in asked["ranks"]]  # numpy's, or of a generator, which gives them once
        members = tuple(asked["ranks"] or range(dist.get_world_size()))
        members = tuple(sorted(members)) if asked["sort_ranks"] else members
        local = asked["use_local_synchronization"]
        if not local or listener.rank in members:
            report_new_group(listener, next(numbers), members, local=local)
        return create(*given.args, **given.kwargs)

    def outside(name: str) -> None:
        where = frames.own(frames.of_stack(sys._getframe(1)))
        raise not_in_group(listener.rank, name, where)

    with replaced(c10d, "_new_group_with_tag", new_group), replaced(c10d, "_warn_not_in_group", outside):
        yield


def not_in_group(rank: int, name: str, where: frames.Frame) -> GroupError:
    """The error of a collective on a group that does not hold this rank: torch would only warn, and do nothing."""
    what = f"rank {rank} is not in the group: nothing happened"
    fix = "only members of a group call its collectives"
    return GroupError("not in the group", what, fix, rank=rank, file=where.file, line=where.line, call=name)


def report_new_group(listener: Listener, number: int, members: tuple[int, ...], *, local: bool) -> None:
    """Tell that this rank enters `new_group` and waits in it for all others; `local`: for the other members."""
    meet = tuple(sorted(members)) if local else tuple(range(dist.get_world_size()))
    name = f"{NEW_GROUP} {c10d._hash_ranks_to_str(list(members))}" if local else NEW_GROUP  # where torch has them meet
    where = frames.own(frames.of_stack(sys._getframe(2)))
    place = {"file": where.file, "line": where.line}
    call = Call(Op.BARRIER, meet, [], [], group_name=name, function=NEW_GROUP, number=number, **place)
    call.shape = members  # what the ranks must agree in
    listener.report(report_of(call, listener.rank))
    waits = {"number": number, "thread": threading.get_ident(), "name": "", "others": 0}
    listener.report({"what": "wait", **waits, **place})
