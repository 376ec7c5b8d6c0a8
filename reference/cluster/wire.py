"""Messages between the owner and a rank: a kind, a payload and any number of buffers.

The bytes of a buffer go straight from memory to the socket and from the socket to memory.
"""

import contextlib
import json
import mmap
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """What a message is."""

    RUN = 1  # owner to rank: a header on how to run, then a function with its arguments
    RESULT = 2  # rank to owner: a header on what else happened, then what the function returned
    FAULT = 3  # rank to owner: what went wrong, as JSON
    EVENT = 4  # rank to supervisor: a call was posted, is waited for, is complete, as JSON
    READY = 5  # rank to owner: the process group is there


SLEEP, WAKE = b"s", b"w"  # owner to fork server: stop the ranks of a generation, let them go on

Buffer = bytearray | mmap.mmap  # what the bytes of a tensor arrive in

_HEAD = struct.Struct("<BQI")
_SIZE = struct.Struct("<Q")
_LARGE = 1 << 22  # bytes of a buffer that is worth large pages
_MOST = 1 << 32  # bytes of a payload
_PIECES = 512  # sendmsg takes at most IOV_MAX (1024) pieces


def send(
    sock: socket.socket, kind: Kind, payload: bytes = b"", buffers: tuple[Any, ...] = (), deadline: float | None = None
) -> None:
    """Write one message, whole.

    Args:
        deadline: on `time.monotonic`, for a socket that does not block; None to wait as long as it takes.

    Raises:
        OSError: the other side is gone.
        TimeoutError: the other side does not read.
    """
    views = [memoryview(b).cast("B") for b in buffers]
    sizes = b"".join(_SIZE.pack(v.nbytes) for v in views)
    pieces = [memoryview(_HEAD.pack(kind, len(payload), len(views)) + sizes + payload), *views]
    pieces = [p for p in pieces if p.nbytes]
    while pieces:
        try:
            sent = sock.sendmsg(pieces[:_PIECES])
        except BlockingIOError:
            _wait_for_room(sock, deadline)
            continue
        while pieces and sent >= pieces[0].nbytes:
            sent -= pieces.pop(0).nbytes
        if sent:
            pieces[0] = pieces[0][sent:]


def _wait_for_room(sock: socket.socket, deadline: float | None) -> None:
    """Until a socket takes more. Raises TimeoutError."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    left = None if deadline is None or deadline == float("inf") else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise TimeoutError("the other side does not read")


class Channel:
    """A rank's end of the line to its owner, for all its threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()
        self._reader = Reader(sock)

    def send(self, kind: Kind, payload: bytes = b"", buffers: tuple[Any, ...] = ()) -> None:
        """Write one message, whole. Raises OSError where the owner is gone."""
        with self._lock:
            send(self._sock, kind, payload, buffers)

    def receive(self) -> tuple[Kind, bytes, list[Buffer]]:
        """Block until a message has come. Raises EOFError or OSError where the owner is gone."""
        (message,) = self._reader.read()
        return message


def _memory(size: int) -> Buffer:
    """Memory for a buffer; for a large one in large pages, which the kernel gives in a fifth of the time."""
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel may be built without
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def with_header(header: dict[str, Any], body: bytes) -> bytes:
    """A payload of two parts: what there is to say besides, mostly nothing, and the rest."""
    return (json.dumps(header).encode() if header else b"") + b"\n" + body


def split_header(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """The two parts of a payload."""
    header, _, body = payload.partition(b"\n")
    return json.loads(header) if header else {}, body


class Reader:
    """Messages out of a socket that may deliver them in any pieces."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._done: list[tuple[Kind, bytes, list[Buffer]]] = []
        self._pieces = self._parse()
        self._want = next(self._pieces)

    def read(self) -> list[tuple[Kind, bytes, list[Buffer]]]:
        """The messages that are complete now; at least one where the socket blocks.

        Raises:
            EOFError: the stream has ended.
            ValueError, OSError, MemoryError: what comes in is no message.
        """
        while not self._done:
            try:
                count = self._sock.recv_into(self._want)
            except BlockingIOError:
                break
            if count == 0:
                raise EOFError("the other side has closed the connection")
            self._want = self._want[count:]
            if not self._want.nbytes:
                self._want = next(self._pieces)
        done, self._done = self._done, []
        return done

    def _parse(self) -> Iterator[memoryview]:
        """Yield the next piece of memory to fill; runs on when it is full."""
        while True:
            head = bytearray(_HEAD.size)
            yield memoryview(head)
            kind, length, count = _HEAD.unpack(head)
            if length > _MOST:
                raise ValueError(f"a payload of {length} bytes")
            sizes = bytearray(_SIZE.size * count)
            if count:
                yield memoryview(sizes)
            payload = bytearray(length)
            if length:
                yield memoryview(payload)
            buffers = [_memory(size) for (size,) in _SIZE.iter_unpack(sizes)]
            for buffer in buffers:
                if len(buffer):
                    yield memoryview(buffer)
            self._done.append((Kind(kind), bytes(payload), buffers))
