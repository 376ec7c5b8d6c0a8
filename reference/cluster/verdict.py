"""From what ranks reported to the one error that explains a failed call."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..trace import Event, frames
from . import errors
from .errors import RankDied, RankError, RemoteException, TimeLimit
from .watch.posted_calls import ranks_text

# What gloo says on a rank whose peer died: a consequence, never the cause.
_CONSEQUENCES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "gloo/transport",
)

_SIGNALS = {
    "SIGKILL": "killed by SIGKILL: by another process, or by the kernel when memory ran out",
    "SIGSEGV": "crashed with SIGSEGV: native code touched memory that is not there",
    "SIGABRT": "aborted (SIGABRT) in native code",
}


Messages = Mapping[tuple[int | None, int, int], int]
"""(src, dst, tag): how many were sent, less those received, or none: see `reference.trace.tap.HeardCalls`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back from one rank."""

    result: Any
    events: tuple[Event, ...]
    messages: Messages
    rounds: int  # collectives entered
    threads: int  # started and not ended


@dataclass
class Reports:
    """What has come in from the ranks of one call."""

    world_size: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    faults: dict[int, RankError] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)  # exit code, or minus the signal
    mortal: bool = False  # ranks may end: that is no failure

    @property
    def silent(self) -> list[int]:
        """Ranks that have neither finished nor failed."""
        return [
            r for r in range(self.world_size) if r not in self.outcomes and r not in self.faults and r not in self.exits
        ]

    @property
    def failed(self) -> bool:
        """True once some rank has failed."""
        return bool(self.faults or (self.exits and not self.mortal))


def from_fault(rank: int, fault: Mapping[str, Any]) -> RankError:
    """The error of a fault that a rank reported, with the class it names."""
    kind = getattr(errors, str(fault.get("error")), RemoteException)
    if not (isinstance(kind, type) and issubclass(kind, RankError)):
        kind = RemoteException
    return kind(
        str(fault.get("kind", "exception")),
        *map(str, fault.get("details", ())),
        rank=rank,
        file=str(fault.get("file", "")),
        line=int(fault.get("line", 0)),
        call=str(fault.get("call", "")),
    )


def consequence(error: RankError) -> bool:
    """True where a rank only noticed that another one had died."""
    return any(sign in detail for detail in error.details for sign in _CONSEQUENCES)


def from_exit(rank: int, status: int, stack: list[frames.Frame], last_call: str = "") -> RankError:
    """The error of a rank whose process ended."""
    where = frames.own(stack)
    if status < 0:
        kind = signal.Signals(-status).name
        what = _SIGNALS.get(kind, f"ended by {kind}")
    else:
        what, kind = f"os._exit({status}): left before finishing", "os._exit"
    return RankDied(kind, what, rank=rank, file=where.file, line=where.line, call=last_call)


def left(stacks: Mapping[int, list[frames.Frame]]) -> str:
    """Which ranks were left where, in one line: `left waiting: rank 0 at ring.py:17 in recv; not finished: …`.

    One that is in no function of torch.distributed may wait, or compute: it has not finished, whatever it does.
    """
    said: dict[str, dict[str, list[int]]] = {"left waiting": {}, "not finished": {}}
    for rank, stack in stacks.items():
        blamed = frames.own(stack)
        if blamed.file:
            inside = communication(stack)
            where = f"{frames.display(blamed.file)}:{blamed.line}" + (f" in {inside}" if inside else "")
            said["left waiting" if inside else "not finished"].setdefault(where, []).append(rank)
    return "; ".join(f"{what}: {places_text(places)}" for what, places in said.items() if places)


def places_text(places: Mapping[str, list[int]]) -> str:
    """Which ranks are at which place: `ranks 0, 2 at ring.py:17 in recv; rank 1 at ring.py:20`."""
    return "; ".join(f"{ranks_text(ranks)} at {place}" for place, ranks in places.items())


def communication(stack: list[frames.Frame]) -> str:
    """The function of torch.distributed that a stack is in, or "" where it is in none."""
    names = [f.function for f in stack if f.file.endswith("distributed_c10d.py") and f.function != "wrapper"]
    return names[-1] if names else ""


def importing(stack: list[frames.Frame]) -> str:
    """The module of a package that a stack imports, the outermost of several, or "" where it imports none."""
    for frame in reversed(stack):
        if frame.function == "<module>" and (found := re.search(r"(?:site|dist)-packages/(.+)\.py$", frame.file)):
            return found[1].removesuffix("/__init__").replace("/", ".")
    return ""


BUSY = "busy machine"  # the kind of a time limit that says nothing of the code


def too_busy(seconds: float, rank: int) -> RankError:
    """The error of a call whose ranks hardly ever got a processor."""
    details = [
        f"after {seconds:.0f} s the ranks still wait for a processor: this machine is busy with other programs",
        "this says nothing of the code: try again when they have ended",
    ]
    return TimeLimit(BUSY, *details, rank=rank)


def out_of_time(
    seconds: float, stacks: Mapping[int, list[frames.Frame]], fallback: int, *, watched: bool = False
) -> RankError:
    """The error of a call that took too long: blames a rank that computes before one that waits for others."""
    busy = [rank for rank, stack in stacks.items() if not communication(stack)]
    rank = min(busy or stacks or [fallback])
    stack = stacks.get(rank, [])
    where = frames.own(stack)
    others = {r: s for r, s in stacks.items() if r != rank}
    at = f" at line {where.line}" if where.line else ", and does not say where"
    limit = f"still running after {seconds:g} s{at}; Cluster(..., timeout=) sets the limit"
    call = communication(stack)
    hint = ""
    if module := importing(stack):
        hint = f"it still imports {module}: Cluster(..., preload=[{module!r}]) does so before the first call"
    elif not busy and not watched:
        hint = "every rank that runs waits for another: Cluster(..., watch=True) names the reason"
    details = [line for line in (limit, hint, left(others)) if line]
    return TimeLimit("time limit", *details, rank=rank, file=where.file, line=where.line, call=call)
