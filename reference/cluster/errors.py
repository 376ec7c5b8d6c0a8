"""What can go wrong on a rank, as one clear error each.

Every error names the rank, the caller's own file and line, and what happened there, in at most six lines:

    rank 2 · ring.py:17 · recv(src=1)
        deadlock: rank 0 waits for 3, 3 waits for 2, 2 waits for 1, 1 waits for 0
        every rank receives before it sends: let them cross with dist.batch_isend_irecv
"""

from functools import partial
from typing import Any

MAX_LINES = 6
MAX_WIDTH = 200


class RankError(Exception):
    """A call on the cluster failed. The next call works: the ranks have been started again.

    Attributes:
        rank: the rank to blame, the first one where several are.
        file, line: the caller's own code on that rank ("" and 0 where there is none).
        kind: the fault in a word or two, the same text for the same fault ("deadlock", "exception", "killed").
        call: what the rank was doing, such as "recv(src=1)".
        trace: what the ranks had said until then, a `reference.trace.Trace`, or None where nothing was recorded.
    """

    def __init__(
        self, kind: str, *details: str, rank: int, file: str = "", line: int = 0, call: str = "", trace: Any = None
    ) -> None:
        super().__init__(kind, *details)
        self.kind, self.details = kind, details
        self.rank, self.file, self.line, self.call = rank, file, line, call
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        named = {"rank": self.rank, "file": self.file, "line": self.line, "call": self.call, "trace": self.trace}
        return partial(type(self), **named), (self.kind, *self.details)

    def __str__(self) -> str:
        from ..trace.frames import display

        where = f"{display(self.file)}:{self.line}" if self.file else ""
        head = " · ".join(part for part in (f"rank {self.rank}", where, self.call or self.kind) if part)
        lines = [line for detail in self.details for line in detail.splitlines()]
        shown = lines if len(lines) < MAX_LINES else [*lines[: MAX_LINES - 3], "…", lines[-1]]
        text = "\n    ".join(_clip(line) for line in (head, *shown))
        return text.encode("utf-8", "backslashreplace").decode()  # an exception may quote half a character

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message alone. The frames of the owner explain nothing."""
        return [f"{type(self).__name__}: {self}"]


def _clip(line: str) -> str:
    return line if len(line) <= MAX_WIDTH else line[: MAX_WIDTH - 1] + "…"


class RemoteException(RankError):
    """`fn` raised an exception on a rank."""


class RankDied(RankError):
    """A rank's process ended before `fn` did: a signal, `os._exit`, `sys.exit`."""


class TimeLimit(RankError):
    """A rank was still running when the time was up."""


class Interrupted(RankError, KeyboardInterrupt):
    """The owner was interrupted (Ctrl-C, or Jupyter's stop button) while the ranks were running."""


class ResultError(RankError):
    """What `fn` returned can't travel back to the owner."""


class OutputFlood(RankError):
    """A rank printed without end."""


class StrayProcess(RankError):
    """`fn` returned and left a child process running."""


class GroupError(RankError):
    """A process group is used where it can't be: destroyed, created twice, created by some ranks only."""


class DeadlockError(RankError):
    """Every rank that still runs waits for another."""


class MismatchError(RankError):
    """Ranks that must agree do not: another collective, shape, dtype, root, reduction, size or tag."""


class RequestError(RankError):
    """A request (`Work`) is misused: never waited for, or its buffer touched before `wait()`."""


class PeerError(RankError):
    """A call names a rank that can't answer: out of range, itself, not in the group."""


class TensorError(RankError):
    """A tensor can't be sent or received as it is: not contiguous, too small, a wrong list of them."""


class NumericsError(RankError):
    """A NaN or an infinity entered a communication."""


class GradientError(RankError):
    """A collective without a backward cut a parameter off from its gradient."""


class Forbidden(RankError):
    """Untrusted code reached outside: for a file, a program, a socket, another process."""


class ThreadError(RankError):
    """Two threads of one rank use one process group at the same time: their order is a race."""


class RaceError(RankError):
    """The result depends on which message arrives first."""


class DriftError(RankError):
    """Replicas of a model are no longer the same: see `watch.replicas`."""


class ClusterError(RuntimeError):
    """The cluster itself can't do what is asked: no such device, too many ranks, already closed."""
