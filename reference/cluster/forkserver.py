"""The owner's side of the fork server: start it, ask it for ranks."""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

from .errors import ClusterError

_BOOT = """
import sys
sys.path[:] = {path!r}
from reference.cluster.server import main
main({fd}, {owner})
"""


class ForkServer:
    """A process that has imported torch and forks ranks. Starting it returns at once; it is ready a second later."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._control, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()
        boot = _BOOT.format(path=sys.path, fd=theirs.fileno(), owner=self.owner)
        # One thread: a fork of a process that has run an OpenMP region hangs. No interrupts: Ctrl-C is the owner's.
        alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback()}
        self._process = subprocess.Popen(
            [sys.executable, "-c", boot],
            pass_fds=[theirs.fileno()],
            env=os.environ | alone,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the server can fork for this process."""
        return os.getpid() == self.owner and self._process.poll() is None

    def fork(self, plan: dict[str, Any], fds: list[int]) -> None:
        """Ask for the ranks of one generation; they come up on their own time. `fds` become theirs."""
        try:
            socket.send_fds(self._control, [json.dumps(plan).encode()], fds)
        except OSError as error:
            raise ClusterError(f"the fork server has died: {self.last_words() or error}") from error

    def last_words(self) -> str:
        """The last line that the server wrote, for the case that it died."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End the server and every rank of it, and wait until they are gone."""
        self._control.close()
        self._process.wait()


@functools.lru_cache(maxsize=1)
def _of_process(owner: int) -> list[ForkServer]:
    return []


def shared() -> ForkServer:
    """The one fork server of this process, started on first use and again if it has died."""
    servers = _of_process(os.getpid())
    if not servers or not servers[0].alive:
        servers[:] = [ForkServer()]
    return servers[0]


def _loopback() -> str:
    return "lo" if sys.platform == "linux" else "lo0"
