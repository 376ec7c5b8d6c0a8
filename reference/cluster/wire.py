"""Messages between the owner and a rank: a kind, the number of the call it belongs to, a payload and buffers.

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
from collections.abc import Generator, Iterator
from enum import IntEnum
from typing import Any


class MessageKind(IntEnum):
    """What a message is."""

    RUN = 1  # owner to rank: a header on how to run, then a function with its arguments
    RESULT = 2  # rank to owner: a header on what else happened, then what the function returned
    FAULT = 3  # rank to owner: what went wrong, as JSON
    EVENT = 4  # rank to supervisor: calls were posted, are waited for, are complete, as a list in JSON
    READY = 5  # rank to owner: the process group is there


SLEEP, WAKE = b"s", b"w"  # owner to fork server: stop the ranks of a generation, let them continue

Buffer = bytearray | mmap.mmap  # what the bytes of a tensor arrive in

Received = tuple[MessageKind, int, bytes, list[Buffer]]  # what a message is, its call, its payload, its buffers

_HEAD = struct.Struct("<BIQI")
_SIZE = struct.Struct("<Q")
_LARGE = 1 << 22  # bytes of a buffer that is worth large pages
_MOST = 1 << 40  # bytes of a message
_AT_FIRST = 1 << 16  # bytes for which there is memory before any has come
_PIECES = 512  # sendmsg takes at most IOV_MAX (1024) pieces


def send(
    sock: socket.socket,
    kind: MessageKind,
    call: int,
    payload: bytes = b"",
    buffers: tuple[Any, ...] = (),
    deadline: float | None = None,
) -> None:
    """Write one message, whole.

    Args:
        call: the number of the call that it belongs to.
        deadline: on `time.monotonic`, for a socket that does not block; None to wait as long as it takes.

    Raises:
        OSError: the other side is gone.
        TimeoutError: the other side does not read.
    """
    views = [memoryview(b).cast("B") for b in buffers]
    sizes = b"".join(_SIZE.pack(v.nbytes) for v in views)
    pieces = [memoryview(_HEAD.pack(kind, call, len(payload), len(views)) + sizes + payload), *views]
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


class MessageChannel:
    """A rank's end of the line to its owner, for all its threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._lock = sock, threading.Lock()
        self._reader = Reader(sock)
        self._call = 0  # that is answered now

    @property
    def asked(self) -> bool:
        """True once the owner has called."""
        return self._call > 0

    def send(self, kind: MessageKind, payload: bytes = b"", buffers: tuple[Any, ...] = ()) -> None:
        """Write one message, whole. Raises OSError where the owner is gone."""
        with self._lock:
            send(self._sock, kind, self._call, payload, buffers)

    def receive(self) -> Received:
        """Block until a message has come; what is sent from now on answers it. Raises EOFError or OSError where the
        owner is gone."""
        (message,) = self._reader.read()
        self._call = message[1]
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
    """Messages out of a socket that may deliver them in any pieces.

    Args:
        most: bytes of a message; one that claims to have more is none of ours.
    """

    def __init__(self, sock: socket.socket, most: int = _MOST) -> None:
        self._sock, self._most = sock, most
        self._done: list[Received] = []
        self._pieces = self._parse()
        self._want = next(self._pieces)

    def read(self) -> list[Received]:
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
            kind, call, length, count = _HEAD.unpack(head)
            self._allow(length + _SIZE.size * count)
            sizes = yield from _growing(_SIZE.size * count)
            payload = yield from _growing(length)
            lengths = [size for (size,) in _SIZE.iter_unpack(sizes)]
            self._allow(length + sum(lengths))
            buffers = [_memory(size) for size in lengths]
            for buffer in buffers:
                if len(buffer):
                    yield memoryview(buffer)
            self._done.append((MessageKind(kind), call, bytes(payload), buffers))

    def _allow(self, size: int) -> None:
        """Raises ValueError for a message that is larger than any of ours."""
        if size > self._most:
            raise ValueError(f"a message of {size:,} bytes; at most {self._most:,} are read")


def _growing(size: int) -> Generator[memoryview, None, bytearray]:
    """Yield memory for `size` bytes, never for more than have come so far, and return all of it."""
    memory = bytearray()
    while len(memory) < size:
        piece = bytearray(min(size - len(memory), max(_AT_FIRST, len(memory))))
        yield memoryview(piece)
        memory += piece
    return memory
