"""One generation of ranks as the owner sees it: sockets, prints, exits, and where each rank stands."""

import contextlib
import io
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..trace import frames
from . import forkserver, wire
from .errors import ClusterError
from .nodes import Nodes
from .output import Output

_CHUNK = 1 << 16  # what a pipe holds
_UNREAD = 1 << 14  # reports that a socket may hold, and many more
_FROM_UNTRUSTED = 1 << 30  # bytes of a message from a rank that runs code one does not trust
_GONE = 10.0  # seconds in which killed ranks must be gone


@dataclass(frozen=True, slots=True)
class RankMessage:
    """What a rank sent."""

    rank: int
    kind: wire.MessageKind
    payload: bytes
    buffers: list[wire.Buffer]
    call: int = 0  # the number of the call that it answers; 0 for none


@dataclass(frozen=True, slots=True)
class Exit:
    """How a rank's process ended: its exit code, or minus the signal."""

    rank: int
    status: int


@dataclass
class _End:
    """The owner's ends of what connects it to one rank."""

    sock: socket.socket
    output: io.FileIO
    dump: io.FileIO
    most: int | None  # bytes of a message
    reader: wire.Reader = field(init=False)

    def __post_init__(self) -> None:
        self.sock.setblocking(False)
        self.reader = wire.Reader(self.sock, **({} if self.most is None else {"most": self.most}))


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    """The two ends of a pipe; reading does not block."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    return io.FileIO(read), io.FileIO(write, "w")


class Ranks:
    """Processes 0..n-1 of one generation, from fork to kill."""

    def __init__(self, world_size: int, plan: dict[str, Any], nodes: Nodes | None = None) -> None:
        self.world_size = world_size
        self.pids: list[int] = []
        self.exits: dict[int, Exit] = {}
        self.asleep = False
        self.failure = ""  # why the server could not fork or keep them
        self.output = Output(world_size)
        self.calls = 0  # that they were asked for
        self._most = _FROM_UNTRUSTED if plan["untrusted"] else None
        self.ends: list[_End] = []
        self._rest = b""
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as theirs:
            try:
                self._channel, channel = socket.socketpair()
                self._open.enter_context(self._channel)
                given = [theirs.enter_context(channel)]
                for _ in range(world_size):
                    given += map(theirs.enter_context, self._connect())
                if nodes:
                    given += map(theirs.enter_context, nodes.namespaces())
                request = plan | {"world_size": world_size, "nodes": nodes.count if nodes else 0}
                self._server = forkserver.fork(request, [file.fileno() for file in given])
            except OSError as error:
                self.close()
                raise ClusterError(f"{world_size} ranks need {3 * world_size + 1} open files: {error}") from error
        self._poll = select.poll()
        self._sources: dict[int, tuple[str, int]] = {self._channel.fileno(): ("channel", -1)}
        for rank, end in enumerate(self.ends):
            self._sources[end.sock.fileno()] = ("socket", rank)
            self._sources[end.output.fileno()] = ("output", rank)
        for fd in self._sources:
            self._poll.register(fd, select.POLLIN)

    def _connect(self) -> tuple[socket.socket, io.FileIO, io.FileIO]:
        """Keep our ends of what connects us to the next rank; returns its ends."""
        mine, its = socket.socketpair()
        (output, its_output), (dump, its_dump) = _pipe(), _pipe()
        for file in (mine, output, dump):
            self._open.enter_context(file)
        self.ends.append(_End(mine, output, dump, self._most))
        return its, its_output, its_dump

    def send(
        self,
        rank: int,
        kind: wire.MessageKind,
        payload: bytes,
        buffers: tuple[Any, ...] = (),
        deadline: float | None = None,
    ) -> None:
        """Send to one rank; a rank that is gone will be reported by `poll`. Raises TimeoutError past the deadline."""
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            wire.send(self.ends[rank].sock, kind, self.calls, payload, buffers, deadline)

    def sleep(self) -> None:
        """Stop their processes: they run nothing, and need to hear nothing."""
        if not self.asleep:
            self.asleep = True
            self._signal(wire.SLEEP)

    def wake(self) -> None:
        """Let stopped processes continue."""
        if self.asleep:
            self.asleep = False
            self._signal(wire.WAKE)

    def _signal(self, word: bytes) -> None:
        """Have the parent of the ranks do something: it alone knows for sure which processes are theirs."""
        with contextlib.suppress(OSError):  # it is gone: `poll` will report that
            self._channel.sendall(word)

    def poll(self, seconds: float) -> Iterator[RankMessage | Exit]:
        """What arrives within `seconds`, at once when something does. Prints go to the caller's stdout."""
        ready = self._ready(seconds)
        for kind, rank in ready:
            if kind == "output":
                self._show(rank)
        for kind, rank in ready:
            if kind == "socket":
                yield from self._read(rank)
        if ("channel", -1) in ready:
            yield from self._read_channel()

    @property
    def quiet(self) -> bool:
        """True where nothing has come in that was not read yet."""
        return not self._poll.poll(0)

    def drain(self) -> None:
        """Show what the ranks have printed so far, also the beginnings of lines."""
        for kind, rank in self._ready(0):
            if kind == "output":
                self._show(rank)
        self.output.flush()

    def _ready(self, seconds: float) -> list[tuple[str, int]]:
        limit = None if seconds == float("inf") else max(0.0, seconds) * 1000
        return [self._sources[fd] for fd, _ in self._poll.poll(limit)]

    def _show(self, rank: int) -> None:
        file = self.ends[rank].output
        while data := file.read(_CHUNK):
            self.output.feed(rank, data)
            if len(data) < _CHUNK or self.output.flooding is not None:
                return
        if data is not None:
            self._forget(file.fileno())

    def _read(self, rank: int) -> Iterator[RankMessage]:
        end = self.ends[rank]
        try:
            for kind, call, payload, buffers in end.reader.read():
                yield RankMessage(rank, kind, payload, buffers, call)
        except (EOFError, ConnectionError):
            self._forget(end.sock.fileno())
        except (ValueError, OverflowError, MemoryError, OSError):  # no message of ours
            self._forget(end.sock.fileno())
            yield RankMessage(rank, wire.MessageKind.FAULT, b"", [], self.calls)

    def _read_channel(self) -> Iterator[RankMessage | Exit]:
        try:
            data = self._channel.recv(_CHUNK)
        except ConnectionError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            notice = json.loads(line)
            self.pids = notice.get("pids", self.pids)
            self.failure = notice.get("failed", self.failure)
            if "exited" in notice:
                yield from self._exit(notice["exited"], notice["status"])
        if not data:  # all ranks are gone
            self._forget(self._channel.fileno())
            words = self._server.last_words()
            self.failure = self.failure or "the process that forks the ranks is gone" + f": {words}" * bool(words)
            for rank in range(self.world_size):
                if rank not in self.exits:
                    yield from self._exit(rank, -signal.SIGKILL)

    def _exit(self, rank: int, status: int) -> Iterator[RankMessage | Exit]:
        """What a rank reported before its process ended, and then that it has: its last call may say why."""
        for _ in range(_UNREAD):
            said = list(self._read(rank)) if self.ends[rank].sock.fileno() in self._sources else []
            yield from said
            if not said:
                break
        self.exits[rank] = Exit(rank, status)
        yield self.exits[rank]

    def _forget(self, fd: int) -> None:
        del self._sources[fd]
        self._poll.unregister(fd)

    def stacks(self, asked: list[int], seconds: float = 0.5) -> dict[int, list[frames.Frame]]:
        """Where ranks stand: the frames of their main threads, innermost first. Asks each by a signal."""
        asked = [rank for rank in asked if rank not in self.exits and rank < len(self.pids)]
        for rank in asked:
            self.dumped(rank)  # what it may have said before
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        texts = dict.fromkeys(asked, "")
        missing, deadline = set(asked), time.monotonic() + seconds
        while missing and time.monotonic() < deadline:
            time.sleep(0.001)
            for rank in list(missing):
                texts[rank] += self.dumped(rank)
                if texts[rank].endswith(("in <module>\n", "  ...\n")):  # the outermost frame, or too many of them
                    missing.discard(rank)
        return {rank: frames.of_dump(text) for rank, text in texts.items()}

    def dumped(self, rank: int) -> str:
        """What a rank's fault handler has written: on a signal that kills, and when asked."""
        text = b""
        while data := self.ends[rank].dump.read(_CHUNK):
            text += data
        return text.decode(errors="replace")

    def end(self) -> None:
        """Have every rank and everything below it ended. Returns at once."""
        with contextlib.suppress(OSError):  # they are gone
            self._channel.shutdown(socket.SHUT_WR)

    def kill(self, *, show: bool = True) -> None:
        """End every rank and everything below it, wait until they are gone, and show their last words."""
        if self._channel.fileno() < 0:
            return
        self.end()
        with contextlib.suppress(OSError):
            self._channel.settimeout(_GONE)
            while self._channel.recv(_CHUNK):
                pass
        if show:
            self.drain()
        self.close()

    def close(self) -> None:
        """Let go of them without a word, as a fork of the owner must: they are not its own."""
        self._open.close()
