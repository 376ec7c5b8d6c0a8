"""What the kernel saw of a call: witnesses that code in the ranks cannot reach.

The trace and the meters run in the learner's own process, and a text that is clever enough can make them say anything.
The kernel counts, too: the bytes that went over the ranks' own loopback, and the most memory that each process ever
had. The owner reads both from outside, before a call and after it (Linux only; None where it can't).
"""

from dataclasses import dataclass
from pathlib import Path

from reference.cluster import Cluster
from reference.trace import Event, Op, Trace

_HEADERS = 52  # bytes of IP and TCP, with timestamps, around the data of a packet
_AROUND = 144  # bytes that gloo sends with each message: it tells that it is ready, what comes, and that it has come
_CONNECTION = 24  # bytes by which the packets that open a connection are longer


_FORGIVEN = 128  # bytes of a call: less than any message takes, more than acknowledgements with options do


@dataclass(frozen=True)
class Counters:
    """What has gone over a network since it was made: bytes inside of TCP, and connections."""

    payload: int
    connections: int


class Traffic:
    """What goes over the network of a cluster's ranks while a `with` block runs. It knows nothing where they share it
    with others, or have none."""

    def __init__(self, process: int | None) -> None:
        self._process = process

    @classmethod
    def of(cls, cluster: Cluster) -> "Traffic":
        """Of ranks in a network of their own. Waits until they are up. Raises ClusterError."""
        (first, *_), apart = cluster.ready(), cluster.apart
        return cls(first if apart else None)

    def __enter__(self) -> "Traffic":
        self._before = counters(self._process)
        return self

    def __exit__(self, *error: object) -> None:
        self._after = counters(self._process)

    def hidden(self, trace: Trace) -> int:
        """Bytes that the ranks sent to each other, and that no event of the trace stands for."""
        if self._before is None or self._after is None:
            return 0
        moved = self._after.payload - self._before.payload
        known = explained(trace, self._after.connections - self._before.connections)
        return moved - known if moved > known + _FORGIVEN else 0


def explained(trace: Trace, connections: int) -> int:
    """The most bytes inside of TCP that a call may take of which a trace says all.

    Gloo puts 144 bytes around each message. Of its collectives the bytes are those of the algorithm that the trace
    counts, in at most 4(n-1) messages of each rank: exact for broadcasts, an upper bound for the others.

    Args:
        connections: that were opened meanwhile.
    """
    around = sum(_messages(event) for of_rank in trace.events for event in of_rank)
    return sum(trace.bytes_sent) + _AROUND * around + _CONNECTION * connections


def _messages(event: Event) -> int:
    """How many messages a rank sends for a call at most."""
    if event.op.point_to_point:
        return int(event.op is Op.SEND)
    return 4 * (len(event.group) - 1)


def counters(process: int | None) -> Counters | None:
    """What the kernel has counted on the network that a process is in; None where it can't be read."""
    try:
        found = {**_table(process, "snmp"), **_table(process, "netstat")}
        payload = found["IpExt:OutOctets"] - _HEADERS * found["Ip:OutRequests"]
        return Counters(payload, found["Tcp:ActiveOpens"])
    except (OSError, KeyError, ValueError):
        return None


def _table(process: int | None, file: str) -> dict[str, int]:
    """A table of /proc/net: a line of names, then a line of numbers."""
    lines = [line.split() for line in Path(f"/proc/{process}/net/{file}").read_text().splitlines()]
    return {
        names[0] + name: int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def memory(process: int) -> int | None:
    """Bytes that a process has in memory now."""
    return _of_status(process, "VmRSS")


def most_memory(process: int) -> int | None:
    """The most bytes that a process had in memory since `forget_most`."""
    return _of_status(process, "VmHWM")


def forget_most(process: int) -> None:
    """Let the kernel count the most memory of a process from now on. Raises OSError."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _of_status(process: int, name: str) -> int | None:
    """A number of kB in /proc/PID/status, as bytes."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError):
        return None
