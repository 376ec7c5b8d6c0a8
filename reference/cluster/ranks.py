"""One generation of ranks as the owner sees it: sockets, prints, exits, and where each rank stands."""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..trace import frames
from . import wire
from .forkserver import ForkServer
from .output import Output


@dataclass(frozen=True)
class Message:
    """What a rank sent."""

    rank: int
    kind: wire.Kind
    payload: bytes
    buffers: list[bytearray]


@dataclass(frozen=True)
class Exit:
    """How a rank's process ended: its exit code, or minus the signal."""

    rank: int
    status: int


def memory_directory() -> str:
    """Where small files live in memory."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


@dataclass
class _End:
    """The owner's ends of what connects it to one rank."""

    sock: socket.socket
    output: int
    dump: int
    reader: wire.Reader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = wire.Reader(self.sock, blocking=False)

    def close(self) -> None:
        self.sock.close()
        os.close(self.output)
        os.close(self.dump)


class Ranks:
    """Processes 0..n-1 of one generation, from fork to kill."""

    def __init__(self, server: ForkServer, world_size: int, plan: dict[str, Any]) -> None:
        self.world_size = world_size
        self.pids: list[int] = []
        self.exits: dict[int, Exit] = {}
        self.output = Output(world_size)
        store = Path(memory_directory()) / f"rankwise-{os.getpid()}-{time.monotonic_ns()}"
        self._channel, theirs = socket.socketpair()
        self._rest = b""
        self.ends: list[_End] = []
        given: list[int] = [theirs.detach()]
        for _ in range(world_size):
            mine, its = socket.socketpair()
            output_read, output_write = os.pipe()
            dump_read, dump_write = os.pipe()
            os.set_blocking(output_read, False)
            os.set_blocking(dump_read, False)
            self.ends.append(_End(mine, output_read, dump_read))
            given += [its.detach(), output_write, dump_write]
        try:
            server.fork(plan | {"world_size": world_size, "store": str(store)}, given)
        finally:
            for fd in given:
                os.close(fd)
        self._poll = select.poll()
        self._sources: dict[int, tuple[str, int]] = {self._channel.fileno(): ("channel", -1)}
        for rank, end in enumerate(self.ends):
            self._sources[end.sock.fileno()] = ("socket", rank)
            self._sources[end.output] = ("output", rank)
        for fd in self._sources:
            self._poll.register(fd, select.POLLIN)

    def send(self, rank: int, kind: wire.Kind, payload: bytes, buffers: tuple[Any, ...] = ()) -> None:
        """Send to one rank; a rank that is gone will be reported by `poll`."""
        with contextlib.suppress(OSError):
            wire.send(self.ends[rank].sock, kind, payload, buffers)

    def poll(self, seconds: float) -> Iterator[Message | Exit]:
        """What arrives within `seconds`, at once when something does. Prints go to the caller's stdout."""
        ready = self._poll.poll(max(0.0, seconds) * 1000)
        kinds = [self._sources[fd] for fd, _ in ready if fd in self._sources]
        for kind, rank in kinds:
            if kind == "output":
                self.drain_output(rank)
        for kind, rank in kinds:
            if kind == "socket":
                yield from self._read(rank)
        if ("channel", -1) in kinds:
            yield from self._read_channel()

    def drain_output(self, rank: int) -> None:
        """Show what a rank has printed so far."""
        fd = self.ends[rank].output
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 1 << 16):
                self.output.feed(rank, data)
                if self.output.flooded(rank):
                    return
            self._forget(fd)

    def _read(self, rank: int) -> Iterator[Message]:
        end = self.ends[rank]
        try:
            for kind, payload, buffers in end.reader.read():
                yield Message(rank, kind, payload, buffers)
        except (EOFError, ConnectionError):
            self._forget(end.sock.fileno())

    def _read_channel(self) -> Iterator[Exit]:
        try:
            data = self._channel.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:  # the server is gone, and all ranks with it
            self._forget(self._channel.fileno())
            missing = [rank for rank in range(self.world_size) if rank not in self.exits]
            for rank in missing:
                self.exits[rank] = Exit(rank, -signal.SIGKILL)
                yield self.exits[rank]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            notice = json.loads(line)
            if "pids" in notice:
                self.pids = notice["pids"]
            else:
                self.exits[notice["exited"]] = Exit(notice["exited"], notice["status"])
                yield self.exits[notice["exited"]]

    def _forget(self, fd: int) -> None:
        if self._sources.pop(fd, None):
            self._poll.unregister(fd)

    def stacks(self, asked: list[int], seconds: float = 0.1) -> dict[int, list[frames.Frame]]:
        """Where ranks stand: the frames of their main threads, innermost first. Asks each by a signal."""
        asked = [rank for rank in asked if rank not in self.exits and rank < len(self.pids)]
        for rank in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        texts = dict.fromkeys(asked, "")
        deadline = time.monotonic() + seconds
        missing = set(asked)
        while missing and time.monotonic() < deadline:
            time.sleep(0.001)
            for rank in list(missing):
                texts[rank] += self.dumped(rank)
                if texts[rank].endswith("\n") and 'File "' in texts[rank]:
                    missing.discard(rank)
        return {rank: frames.of_dump(text) for rank, text in texts.items()}

    def dumped(self, rank: int) -> str:
        """What a rank's fault handler has written: on a signal that kills, and when asked."""
        text = b""
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.ends[rank].dump, 1 << 16):
                text += data
        return text.decode(errors="replace")

    def kill(self) -> None:
        """End every rank and everything below it, and wait until they are gone."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
            while self._channel.recv(1 << 16):
                pass
        self._channel.close()
        for end in self.ends:
            end.close()
        sys.stdout.flush()
