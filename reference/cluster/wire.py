"""How functions, arguments and results travel between the owner and a rank.

A message is a kind, a payload and any number of buffers. Tensors leave the pickle as buffers (protocol 5, PEP 574):
their bytes go straight from memory to the socket and from the socket to memory.
"""

import functools
import io
import pickle
import select
import socket
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle


class Kind(IntEnum):
    """What a message is."""

    RUN = 1  # owner to rank: a function, its arguments, how to run it
    RESULT = 2  # rank to owner: what it returned
    FAULT = 3  # rank to owner: what went wrong, as JSON
    EVENT = 4  # rank to supervisor: a call was posted, is waited for, is complete, as JSON
    READY = 5  # rank to owner: the process group is there
    DIRTY = 8  # rank to owner: the call left something running, start the ranks again before the next
    EVENTS = 6  # rank to owner: the calls of a whole run, as JSON
    STOP = 7  # supervisor to rank: raise this error, as JSON


_HEAD = struct.Struct("<BQI")
_SIZE = struct.Struct("<Q")
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

    def receive(self) -> tuple[Kind, bytes, list[bytearray]]:
        """Block until a message has come. Raises EOFError or OSError where the owner is gone."""
        (message,) = self._reader.read()
        return message


class Reader:
    """Messages out of a socket that may deliver them in any pieces."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._done: list[tuple[Kind, bytes, list[bytearray]]] = []
        self._pieces = self._parse()
        self._want = next(self._pieces)

    def read(self) -> list[tuple[Kind, bytes, list[bytearray]]]:
        """The messages that are complete now; at least one where the socket blocks. Raises EOFError at the end."""
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
            sizes = bytearray(_SIZE.size * count)
            if count:
                yield memoryview(sizes)
            payload = bytearray(length)
            if length:
                yield memoryview(payload)
            buffers = [bytearray(size) for (size,) in _SIZE.iter_unpack(sizes)]
            for buffer in buffers:
                if buffer:
                    yield memoryview(buffer)
            self._done.append((Kind(kind), bytes(payload), buffers))


_HOUSE = Path(__file__).resolve().parents[2]
_ROOMS = tuple(str(_HOUSE / room) for room in ("reference", "puzzles", "visualizations", "rankwise"))
_LIBRARIES = (sysconfig.get_paths()["stdlib"], *_ROOMS)


@functools.lru_cache(maxsize=4096)
def _send_by_value(module: str) -> None:
    """Let code of `module` travel as code, unless a rank has the same module: one of Python's, installed, or ours.

    A rank may not find a caller's own script or test, or may have imported it before its last edit.
    """
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if file and not file.startswith(_LIBRARIES) and "-packages" not in file:
        cloudpickle.register_pickle_by_value(found)


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with the bytes of CPU tensors out of band and the caller's own modules by value."""

    def reducer_override(self, obj: Any) -> Any:
        import torch

        if isinstance(obj, FunctionType | type):
            _send_by_value(obj.__module__)
        plain = type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type == "cpu"
        if plain and not obj.is_quantized and not obj.is_conj() and not obj.is_neg():
            flat = obj.detach().contiguous().reshape(-1)
            data = pickle.PickleBuffer(flat.view(torch.uint8).numpy()) if flat.numel() else b""
            return _tensor, (data, str(obj.dtype).removeprefix("torch."), tuple(obj.shape), obj.requires_grad)
        return super().reducer_override(obj)


def _tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8).view(kind) if len(data) else torch.empty(0, dtype=kind)
    return flat.view(shape).requires_grad_(requires_grad)


def dumps(obj: Any) -> tuple[bytes, tuple[memoryview, ...]]:
    """An object as a payload and the buffers that go with it."""
    buffers: list[pickle.PickleBuffer] = []
    with io.BytesIO() as file:
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
        return file.getvalue(), tuple(b.raw() for b in buffers)


def loads(payload: bytes, buffers: list[bytearray]) -> Any:
    """The object back. For messages of code that one trusts: a pickle can call anything."""
    return pickle.loads(payload, buffers=buffers)


_HARMLESS: dict[tuple[str, str], Callable[..., Any]] = {(__name__, "_tensor"): _tensor}
_HARMLESS_NAMES = {
    ("collections", "OrderedDict"),
    ("builtins", "complex"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "slice"),
    ("builtins", "range"),
    ("builtins", "bytearray"),
    ("torch", "Size"),
    ("torch", "device"),
}


_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}


class _Guarded(pickle.Unpickler):
    """Builds tensors, numbers, strings and containers of them; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        if (module, name) in _HARMLESS_NAMES or (module == "torch" and name in _DTYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a {module}.{name} is not data: return tensors, numbers, strings, lists or dicts")


def loads_guarded(payload: bytes, buffers: list[bytearray]) -> Any:
    """The object back, from code that one does not trust. Raises pickle.UnpicklingError for anything but plain data."""
    return _Guarded(io.BytesIO(payload), buffers=buffers).load()
