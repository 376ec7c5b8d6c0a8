"""What torch.distributed says when it refuses a call, in the caller's words.

torch checks some arguments itself, before a process group sees the call. Its messages name its own objects; ours
name ranks, arguments and what to do. Everything else keeps torch's words.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from torch.distributed.distributed_c10d import GroupMember

from ..trace import frames
from .errors import GroupError, PeerError, RankError, TensorError


@dataclass(frozen=True)
class Refusal:
    """A refused call: torch's message, the innermost frame of torch and the function that was called."""

    message: str
    rank: int
    inner: dict[str, Any]
    function: str
    arguments: dict[str, Any]
    destroyed: frames.Frame | None

    def error(self, kind: type[RankError], name: str, *details: str) -> RankError:
        """An error for the caller, without its place."""
        shown = [f"{key}={self.arguments[key]}" for key in ("dst", "src") if self.arguments.get(key) is not None]
        return kind(name, *details, rank=self.rank, call=f"{self.function}({', '.join(shown)})")


def translated(error: BaseException, rank: int, destroyed: frames.Frame | None = None) -> RankError | None:
    """The error of the caller behind an exception of torch.distributed, or None where torch's words are best.

    Args:
        destroyed: where the process group was destroyed, if it was.
    """
    cause = error.__context__
    while cause is not None:  # torch may fail again while it reports our error
        if isinstance(cause, RankError):
            return cause
        cause = cause.__context__
    if isinstance(error, AttributeError) and error.obj is GroupMember.NON_GROUP_MEMBER:
        what = "this rank is not in the group: what new_group gave it is no process group"
        fix = "only members call: if group is not dist.GroupMember.NON_GROUP_MEMBER"
        return GroupError("not a member", what, fix, rank=rank)
    calls = list(_calls(error.__traceback__))
    if not calls:
        return None
    outer = calls[0]
    if outer.f_code.co_name == "get_backend" and error.__context__ is not None:  # torch's log asked, not the caller
        outer = next(iter(_calls(error.__context__.__traceback__)), outer)
    refusal = Refusal(str(error), rank, calls[-1].f_locals, outer.f_code.co_name, outer.f_locals, destroyed)
    for pattern, explain in _EXPLANATIONS:
        if re.search(pattern, refusal.message):
            return explain(refusal)
    return None


def _calls(traceback: TracebackType | None) -> list[FrameType]:
    """The frames of torch.distributed in a traceback, outermost first."""
    found = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith("distributed_c10d.py"):
            found.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return found


def _members(group: Any) -> list[int]:
    return list(getattr(group, "ranks", ()))


def _hint(members: list[int], number: int) -> list[str]:
    """For a number that is a rank of the group but not of the world."""
    if 0 <= number < len(members) and members[number] != number:
        return [
            f"group rank {number} is global rank {members[number]}: dst and src are global, group_dst and group_src not"
        ]
    return []


def _not_part(refusal: Refusal) -> RankError:
    number, members = refusal.inner["global_rank"], _members(refusal.inner.get("group"))
    if members == list(range(len(members))):
        what = [f"there is no rank {number}: ranks are 0..{len(members) - 1}"]
    else:
        what = [f"rank {number} is not in the group {members}", *_hint(members, number)]
    return refusal.error(PeerError, "peer out of range", *what)


def _self(refusal: Refusal) -> RankError:
    who = "dst" if "destination" in refusal.message else "src"
    verb = "send to" if who == "dst" else "receive from"
    hint = _hint(_members(refusal.inner.get("group")), refusal.rank)
    return refusal.error(PeerError, "peer is oneself", f"{who} is yourself: a rank can't {verb} itself", *hint)


def _twice(refusal: Refusal) -> RankError:
    fix = "remove init_process_group(): the cluster, like torchrun's worker, has one group already"
    return refusal.error(GroupError, "initialised twice", "the group already exists: it was made before fn began", fix)


def _gone(refusal: Refusal) -> RankError:
    where = refusal.destroyed
    at = f" at {frames.display(where.file)}:{where.line}" if where else ""
    what = f"the process group is gone: destroyed{at}" if where else "there is no such process group here"
    return refusal.error(GroupError, "group destroyed", what, "destroy a group after its last use, or never")


def _no_such_members(refusal: Refusal) -> RankError:
    ranks = list(refusal.inner.get("ranks") or refusal.arguments.get("ranks") or ())
    last = refusal.inner.get("global_world_size", 0) - 1
    what = f"new_group({ranks}) names ranks that do not exist: ranks are 0..{last}"
    return refusal.error(GroupError, "no such ranks", what)


def _list(refusal: Refusal) -> RankError:
    name = "scatter_list" if "scatter_list" in refusal.message else "gather_list"
    root = "src" if name == "scatter_list" else "dst"
    number = refusal.arguments.get(root)
    number = refusal.arguments.get(f"group_{root}") if number is None else number
    rule = "None on every rank but" if "NOT" in refusal.message else "given on"
    return refusal.error(TensorError, "list of the root", f"{name} must be {rule} the root, {root}={number}")


def _dtypes(refusal: Refusal) -> RankError:
    names = [name.removeprefix("torch.").rstrip(".") for name in re.findall(r"torch\.\w+", refusal.message)]
    return refusal.error(
        TensorError, "dtypes differ", f"tensors of one call have different dtypes: {' and '.join(names)}"
    )


def _not_a_group(refusal: Refusal) -> RankError:
    what = "group must be a process group, not a list of ranks"
    return refusal.error(GroupError, "not a group", what, "make one on every rank: group = dist.new_group(ranks)")


def _not_an_op(refusal: Refusal) -> RankError:
    given = refusal.arguments.get("op")
    what = f"op must be a dist.ReduceOp, not {given!r}"
    return refusal.error(TensorError, "not a reduce op", what, "for example op=dist.ReduceOp.SUM")


def _type(refusal: Refusal) -> RankError:
    found = re.search(r"`(\w+)` of type (\S+)\s+but got <class '([\w.]+)'>", refusal.message)
    name, got = found.group(1, 3) if found else ("tensor", "something else")
    fix = {"numpy.ndarray": "torch.from_numpy(x)", "NoneType": "None has no numbers: skip it on every rank alike"}
    what = f"{name} must be a tensor, not {'None' if got == 'NoneType' else got}"
    return refusal.error(
        TensorError, "not a tensor", what, fix.get(got, "wrap it: torch.tensor(x), or call once for each")
    )


_EXPLANATIONS: list[tuple[str, Callable[[Refusal], RankError]]] = [
    (r"Global rank -?\d+ is not part of group", _not_part),
    (r"rank should not be the same as the rank of the current process", _self),
    (r"default process group twice", _twice),
    (r"Default process group has not been initialized|Invalid process group specified|is not registered", _gone),
    (r"is not initialized in the world group map|Process group cannot be None", _gone),
    (r"new group's (world size|rank) should be", _no_such_members),
    (r"``(scatter|gather)_list`` must", _list),
    (r"different dtypes", _dtypes),
    (r"unhashable type: 'list'|Expecting a ProcessGroup", _not_a_group),
    (r"incompatible function arguments[^$]*[Rr]educe[Oo]p|reduceOp", _not_an_op),
    (r"Expected parameter `\w+` of type", _type),
]
