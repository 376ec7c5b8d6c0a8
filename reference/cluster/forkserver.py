"""The owner's side of the fork server: start it, ask it for ranks."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import Any

_GONE = 5.0  # seconds in which a server that is asked to end must be gone
_BOOT = """
import sys
sys.path[:] = {path!r}
from reference.cluster.server import main
main({fd}, {owner}, of_main_thread={of_main_thread}, modules={modules!r})
"""


class ForkServer:
    """A process that has imported torch and forks ranks. Starting it returns at once; it is ready seconds later.

    Args:
        modules: what it imports besides.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._control, theirs = socket.socketpair()
        self._owner = os.getpid()
        self._errors, path = tempfile.mkstemp()
        os.unlink(path)
        weakref.finalize(self, os.close, self._errors)
        of_main_thread = threading.current_thread() is threading.main_thread()
        boot = _BOOT.format(
            path=sys.path,
            fd=theirs.fileno(),
            owner=self._owner,
            of_main_thread=of_main_thread,
            modules=list(modules),
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                pass_fds=[theirs.fileno()],
                env=os.environ | _environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is the owner's
            )
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the server runs."""
        return self._process.poll() is None

    def fork(self, plan: dict[str, Any], fds: list[int]) -> None:
        """Ask for the ranks of one generation; they come up on their own time, with copies of `fds`.

        Raises:
            OSError: the server has died.
        """
        socket.send_fds(self._control, [json.dumps(plan).encode()], fds)

    def end(self) -> None:
        """End the server, with all its ranks, and wait until it is gone."""
        atexit.unregister(self.end)
        if os.getpid() == self._owner:  # not a fork of it
            self._process.terminate()
            try:
                self._process.wait(_GONE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._control.close()

    def last_words(self) -> str:
        """The last line that the server wrote, for the case that it died."""
        text = os.pread(self._errors, 1 << 16, 0).decode(errors="replace")
        return (text.strip().splitlines() or [""])[-1]


class _OfProcess:
    """The one fork server of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None

    def get(self, modules: Sequence[str]) -> ForkServer:
        with self._lock:
            if self._server is not None and not self._server.alive:
                self._server.end()
                self._server = None
            self._server = self._server or ForkServer(modules)
            return self._server


_servers: dict[int, _OfProcess] = {}  # by process id: a fork of the owner has a server of its own
_ranks: set[int] = set()  # process id of the rank that this process is, or is a fork of


def become_rank() -> None:
    """Note that this process is a rank."""
    _ranks.add(os.getpid())


def in_rank() -> bool:
    """True in a rank, and in a fork of it."""
    return bool(_ranks)


def shared(modules: Sequence[str] = ()) -> ForkServer:
    """The fork server of this process, started on first use and again where it has died.

    Args:
        modules: what a server that starts now imports at once, while the caller imports the same for itself.
    """
    return _servers.setdefault(os.getpid(), _OfProcess()).get(modules)


def fork(plan: dict[str, Any], fds: list[int]) -> ForkServer:
    """Fork the ranks of one generation; from a new server, where the old one is found dead."""
    server = shared()
    try:
        server.fork(plan, fds)
    except BrokenPipeError:
        server.end()  # it may be gone and not yet look so
        server = shared()
        server.fork(plan, fds)
    return server


def _environment() -> dict[str, str]:
    """What a process needs that is forked from: one thread, for a fork after an OpenMP region hangs."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    if sys.platform == "linux":
        # Large tensors in large pages: a new one costs a rank a fifth of the time.
        return one_thread | {"GLOO_SOCKET_IFNAME": "lo", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    # macOS: its BLAS and its Objective-C runtime object to forks.
    apple = {"VECLIB_MAXIMUM_THREADS": "1", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    return one_thread | apple | {"GLOO_SOCKET_IFNAME": "lo0"}
