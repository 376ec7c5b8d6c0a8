"""What the kernel saw of a call: witnesses that code in the ranks cannot reach.

The trace and the meters run in the learner's own process, and a text that is clever enough can make them say anything.
The kernel counts, too: the bytes that went over the ranks' own loopback, and the most memory that each process ever
had. The owner reads both from outside, before a call and after it (Linux only; None where it can't).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference.trace import Event, Op

_HEADERS = 52  # bytes of IP and TCP, with timestamps, around the data of a packet
_AROUND = 144  # bytes that gloo sends with each message: it tells that it is ready, what comes, and that it has come
_CONNECTION = 24  # bytes by which the packets that open a connection are longer


@dataclass(frozen=True)
class Traffic:
    """What has gone over a network since it was made: bytes inside of TCP, and connections."""

    payload: int
    connections: int

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(self.payload - before.payload, self.connections - before.connections)


def traffic(process: int) -> Traffic | None:
    """What the kernel has counted on the network that a process is in."""
    try:
        counters = {**_counters(process, "snmp"), **_counters(process, "netstat")}
        payload = counters["IpExt:OutOctets"] - _HEADERS * counters["Ip:OutRequests"]
        return Traffic(payload, counters["Tcp:ActiveOpens"])
    except (OSError, KeyError, ValueError):
        return None


def _counters(process: int, file: str) -> dict[str, int]:
    """A table of /proc/net: a line of names, then a line of numbers."""
    lines = [line.split() for line in Path(f"/proc/{process}/net/{file}").read_text().splitlines()]
    return {
        names[0] + name: int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def expected(events: Sequence[Iterable[Event]], sent: Sequence[int], connections: int) -> int:
    """The most bytes that a call may have moved whose trace says all.

    Args:
        events: by rank.
        sent: bytes sent by each rank, natives counted as `reference.trace.native` does.
        connections: that were opened meanwhile.
    """
    counts = Counter(event.op for of_rank in events for event in of_rank)
    messages = counts[Op.SEND]
    natives = [event for of_rank in events for event in of_rank if not event.op.point_to_point]
    return sum(sent) + _AROUND * messages + _CONNECTION * connections + sum(map(_allowance, natives))


def _allowance(event: Event) -> int:
    """Bytes that one rank puts around its share in a collective of gloo's."""
    n = len(event.group)
    return 4 * (n - 1) * _AROUND


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
