"""The trace event format of Chrome and Perfetto, to look into a run at ui.perfetto.dev.

A rank is a process (pid). Its calls are complete events ("X"); calls that overlap in time are put on threads (tid) of
their own, since slices of one thread must nest. A message is a flow arrow, from "s" in the sender's slice to "f" in the
receiver's. Times are in microseconds, all of them whole nanoseconds: Perfetto rounds a slice's begin and its duration
each for itself, and drops what then overlaps by one.

Format: "Trace Event Format", Google, 2016.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these two modules import this one
    from .timeline import Timeline
    from .trace import Trace


def _nanoseconds(seconds: float) -> int:
    """The same time in whole nanoseconds."""
    return round(seconds * 1e9)


class _Writer:
    """Collects events, and gives overlapping slices of a rank different threads."""

    def __init__(self, world_size: int) -> None:
        self.events: list[dict] = []
        self.free_at: dict[tuple[int, str], list[float]] = {}
        self.tids: dict[tuple[int, str, int], int] = {}
        self.flows = 0
        for rank in range(world_size):
            self._name("process_name", rank, 0, f"rank {rank}")
            self.events.append(
                {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
            )

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self.events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})

    def slice(self, rank: int, thread: str, begin: float, end: float, name: str, category: str, args: dict) -> int:
        """Add a complete event from `begin` to `end`, in seconds. Slices must come by begin. Returns its tid."""
        free_at = self.free_at.setdefault((rank, thread), [])
        place = next((i for i, free in enumerate(free_at) if free <= begin), len(free_at))
        free_at[place : place + 1] = [end]
        tid = self._tid(rank, thread, place)
        first, last = _nanoseconds(begin), _nanoseconds(end)
        self.events.append(
            {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": rank,
                "tid": tid,
                "ts": first / 1000,
                "dur": (last - first) / 1000,
                "args": args,
            }
        )
        return tid

    def _tid(self, rank: int, thread: str, place: int) -> int:
        key = (rank, thread, place)
        if key not in self.tids:
            self.tids[key] = sum(pid == rank for pid, _, _ in self.tids)
            self._name("thread_name", rank, self.tids[key], thread if place == 0 else f"{thread} {place + 1}")
        return self.tids[key]

    def arrow(self, src: int, src_tid: int, sent: float, dst: int, dst_tid: int, received: float, name: str) -> None:
        """Add a flow arrow between two slices, in seconds."""
        common = {"cat": "message", "name": name, "id": self.flows}
        self.flows += 1
        start, finish = _nanoseconds(sent) / 1000, _nanoseconds(received) / 1000
        self.events.append({"ph": "s", "pid": src, "tid": src_tid, "ts": start, **common})
        self.events.append({"ph": "f", "bp": "e", "pid": dst, "tid": dst_tid, "ts": finish, **common})

    def done(self) -> dict:
        return {"traceEvents": self.events, "displayTimeUnit": "ns"}


def of_trace(trace: "Trace") -> dict:
    """The calls as they were measured; an arrow for each send that was received. Open calls last to the end."""
    writer = _Writer(trace.world_size)
    last = trace.duration
    tids = {}
    for event in sorted((e for events in trace.events for e in events), key=lambda e: (e.begin, e.rank, e.posted)):
        end = last if event.end is None else event.end
        arguments = {
            "peer": event.peer,
            "group": list(event.group),
            "tag": event.tag,
            "shape": list(event.shape),
            "dtype": event.dtype,
            "bytes": event.bytes,
            "reduce": event.reduce,
            "line": f"{event.file}:{event.line}",
            "finished": event.end is not None,
        }
        tids[event.rank, event.posted] = writer.slice(
            event.rank, "calls", event.begin, end, event.op.value, "torch.distributed", arguments
        )
    for message in trace.messages:
        send, recv = message.send, message.recv
        if send.op.point_to_point and recv.end is not None:
            tid, recv_tid = tids[send.rank, send.posted], tids[recv.rank, recv.posted]
            writer.arrow(send.rank, tid, send.begin, recv.rank, recv_tid, recv.end, f"{message.bytes} B")
    return writer.done()


def of_timeline(timeline: "Timeline") -> dict:
    """What each rank does, and below it what it sends and receives."""
    writer = _Writer(timeline.world_size)
    for span in timeline.spans:
        writer.slice(span.rank, "rank", span.begin, span.end, span.label or span.kind.value, span.kind.value, {})
    for transfer in timeline.transfers:
        src, dst, begin, end = transfer.src, transfer.dst, transfer.begin, transfer.end
        arguments = {"bytes": transfer.bytes, "src": src, "dst": dst}
        name = f"{transfer.label} {src} → {dst}".strip()
        out = writer.slice(src, "sends", begin, end, name, "message", arguments)
        into = writer.slice(dst, "receives", begin, end, name, "message", arguments)
        writer.arrow(src, out, begin, dst, into, end, f"{transfer.bytes} B")
    return writer.done()


def write(chrome: dict, path: str | Path) -> Path:
    """Write a trace as JSON."""
    path = Path(path)
    path.write_text(json.dumps(chrome))
    return path
