"""What the kernel saw of a call: witnesses that code in the ranks cannot reach.

The trace and the meters run in the learner's own process, and a text that is clever enough can make them say anything.
The kernel counts, too: the bytes that went over the ranks' own loopback, the most memory that each process ever had,
and how long it computed. The owner reads all three from outside (Linux only; None or zero where it can't).
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference.cluster import Cluster
from reference.trace import Event, Op, Trace

from .sent import bytes_sent

_HEADERS = 52  # bytes of IP and TCP, with timestamps, around the data of a packet
_AROUND = 144  # bytes that gloo sends with each message: it tells that it is ready, what comes, and that it has come
_CONNECTION = 24  # bytes by which the packets that open a connection are longer
_NOTED = 600  # bytes in the ranks' store for each connection of a new group, at most
_MUCH, _OF_MUCH = 1 << 20, 256  # of more bytes than the first, one in the second is forgiven: packets are uneven
_PACKET = 2048  # bytes of one that was sent again, at most, where messages are small
_FORGIVEN = 128  # bytes of a call: less than any message takes, more than acknowledgements with options do

_STILL = 20  # looks at the counters of packets until nothing moves
_LOOK = 0.02  # seconds between two looks
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # of the kernel, in a second
_USER, _SYSTEM = 11, 12  # places in /proc/PID/stat after the name, which may hold blanks and brackets


@dataclass(frozen=True)
class Counters:
    """What has gone over a network since it was made: bytes inside of TCP, connections, and packets sent twice."""

    payload: int
    connections: int
    sent_again: int  # packets


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
        self._before, self._store = counters(self._process), _store(self._process)
        self._written = self._read()
        return self

    def __exit__(self, *error: object) -> None:
        self._after = counters(self._process)
        self._written_after = self._read()

    def _read(self) -> bytes:
        """What is in the store through which groups are made: a file that all ranks have open."""
        try:
            return self._store.read_bytes() if self._store else b""
        except OSError:
            return b""

    def hidden(self, trace: Trace, groups: int = 0) -> int:
        """Bytes that the ranks told each other, over the network or in their store, and no event of the trace has.

        Args:
            groups: that each rank may have made meanwhile; one of a single rank needs no connection.
        """
        if self._before is None or self._after is None:
            return 0
        connections = self._after.connections - self._before.connections
        if not self._written_after.startswith(self._written):
            return len(self._written)
        noted = len(self._written_after) - len(self._written)
        if noted > _NOTED * (connections + groups * trace.world_size):
            return noted
        moved = self._after.payload - self._before.payload
        known = explained(trace, connections)
        forgiven = _FORGIVEN + _PACKET * (self._after.sent_again - self._before.sent_again)
        forgiven += known // _OF_MUCH if known > _MUCH else 0
        return moved - known if moved > known + forgiven else 0


def explained(trace: Trace, connections: int) -> int:
    """The most bytes inside of TCP that a call may take of which a trace says all.

    Gloo puts 144 bytes around each message. Its collectives take at most 4(n-1) messages of each rank, and the bytes of
    the algorithm that the trace counts, but for two: a reduce-scatter is an all-reduce inside, and a reduce is a
    reduce-scatter and a gather.

    Args:
        connections: that were opened meanwhile.
    """
    around = sum(_messages(event) for of_rank in trace.events for event in of_rank)
    more = sum(_more(event) for of_rank in trace.events for event in of_rank)
    return sum(bytes_sent(trace)) + _AROUND * around + _CONNECTION * connections + more


def _messages(event: Event) -> int:
    """How many messages a rank sends for a call at most."""
    if event.op.point_to_point:
        return int(event.op is Op.SEND)
    return 4 * (len(event.group) - 1)


def _store(process: int | None) -> Path | None:
    """The file of a rank's store, as others can open it."""
    folder = Path(f"/proc/{process}/fd")
    try:
        return next((file for file in folder.iterdir() if _target(file).startswith("/memfd:rankwise")), None)
    except OSError:
        return None


def _target(file: Path) -> str:
    """What a file of a process is; "" where the process has just closed it."""
    try:
        return os.readlink(file)
    except OSError:
        return ""


def _more(event: Event) -> int:
    """Bytes that a rank sends for a collective of gloo's beyond those of the algorithm that it is counted as."""
    if event.op is Op.REDUCE_SCATTER:
        return event.bytes
    return event.bytes // len(event.group) if event.op is Op.REDUCE else 0


def counters(process: int | None) -> Counters | None:
    """What the kernel has counted on the network that a process is in; None where it can't be read.

    Packets stand in one table and their bytes in another. A late acknowledgement between two looks would be a packet
    without bytes, or bytes without a packet: so the first is read again, until nothing has moved meanwhile.
    """
    try:
        packets = _table(process, "snmp")
        for _ in range(_STILL):
            found, packets, before = _table(process, "netstat"), _table(process, "snmp"), packets
            if packets["Ip:OutRequests"] == before["Ip:OutRequests"]:
                break
        payload = found["IpExt:OutOctets"] - _HEADERS * packets["Ip:OutRequests"]
        return Counters(payload, packets["Tcp:ActiveOpens"], packets["Tcp:RetransSegs"])
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
    """The most bytes that a process has ever had in memory."""
    return _of_status(process, "VmHWM")


def _of_status(process: int, name: str) -> int | None:
    """A number of kB in /proc/PID/status, as bytes."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError):
        return None


class ProcessorTime:
    """Processor time of processes since this was made, in seconds: user and system, of all threads.

    Time in which a process waits, or others have the processor, does not count. Zero where there is no /proc.

    Args:
        pids: gives the process ids whenever it is asked; processes that come up later count from their start.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._before = {pid: used(pid) for pid in pids()}

    def each(self) -> dict[int, float]:
        """Seconds of each process that is there."""
        return {pid: used(pid) - self._before.get(pid, 0.0) for pid in self._pids()}

    @property
    def seconds(self) -> float:
        """Of the process that has used most."""
        return max(self.each().values(), default=0.0)


def used(pid: int) -> float:
    """Seconds of processor time that a process has used until now; 0 where it is gone, or this is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


class Limit:
    """Ends a process that uses more processor time than it may. Whether it had to says `exceeded`."""

    def __init__(self, pids: Callable[[], Sequence[int]], seconds: float) -> None:
        self.exceeded = False
        self._time, self._seconds, self._done = ProcessorTime(pids), seconds, threading.Event()

    def watch(self) -> None:
        """Look until `end`; to be run in a thread."""
        while not self._done.wait(_LOOK):
            for pid, seconds in self._time.each().items():
                if seconds > self._seconds and not self._done.is_set():
                    self.exceeded = True
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if self.exceeded:
                return

    def end(self) -> None:
        """Look no more."""
        self._done.set()


@contextlib.contextmanager
def limited(pids: Callable[[], Sequence[int]], seconds: float) -> Iterator[Limit]:
    """Within this, each of the processes may use so many seconds of processor time; then it is killed."""
    limit = Limit(pids, seconds)
    thread = threading.Thread(target=limit.watch, daemon=True)
    thread.start()
    try:
        yield limit
    finally:
        limit.end()
        thread.join()
