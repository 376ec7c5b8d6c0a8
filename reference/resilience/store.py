"""A store that outlives those who take part: where they leave words for each other.

    python -m reference.resilience.store HOST PORT      on a machine that all reach, and that does not train

It is torch's `TCPStore`, a dictionary behind a port. Its host must not die: it is to a training what etcd or a
lighthouse (torchft) is, and small enough to be watched.
"""

import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from reference.errors import BadInput

# torch asks a name server for the name at the other end of each connection, and its store answers no question then.
# Where a packet of that is lost, a resolver waits for 5 s, for which members would not wait for each other.
os.environ.setdefault("RES_OPTIONS", "timeout:1")

OUT_OF_REACH = (dist.DistNetworkError, dist.DistStoreError)
Connect = Callable[[float], dist.TCPStore]
"""Makes a client of the store, whose questions may take so many seconds. Raises one of OUT_OF_REACH."""
Connection = tuple[int, int]
"""A file descriptor and an inode, by which one knows a connection again."""


class Roll:
    """Names that are written one below the other, by many at once.

    Args:
        title: what the list is called in the store.
    """

    def __init__(self, title: str) -> None:
        self.title, self._read = title, set[int]()
        self.names: set[str] = set()

    def write(self, store: dist.Store, name: str) -> None:
        """Add a name."""
        store.set(f"{self.title}/{store.add(self.title, 1)}", name)

    def news(self, store: dist.Store) -> list[str]:
        """The names that were written since this was asked last."""
        found = []
        for place in set(range(1, store.add(self.title, 0) + 1)) - self._read:
            if store.check([f"{self.title}/{place}"]):  # else it is being written; or never, where its writer died
                found.append(store.get(f"{self.title}/{place}").decode())
                self._read.add(place)
        self.names.update(found)
        return found


def serve(host: str = "127.0.0.1", port: int = 0) -> dist.TCPStore:
    """A store in this process.

    Args:
        host: an address of this machine.
        port: 0 for any that is free; the result has it as `port`.

    Raises:
        BadInput: this port is taken, or the address is another machine's.
    """
    try:
        return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    except OUT_OF_REACH:
        raise BadInput(f"no store can listen at {host}:{port}: take an address of this machine, a free port") from None


def reach(host: str, port: int, patience: float) -> dist.TCPStore:
    """A client of a store, whose questions may take so many seconds.

    torch's client limits its waits for a key, and no other question: `add` on a link that is cut waits for as long as
    TCP does, which is forever where the other end has given up meanwhile. So the kernel is told, too.
    """
    before = connections()
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=patience))
    limit = struct.pack("ll", int(patience), int(patience % 1 * 1e6))
    for file, inode in {one for one, port_there in connections().items() if port_there == port} - before.keys():
        with suppress(OSError), socket.socket(fileno=os.dup(file)) as it:
            if os.fstat(it.fileno()).st_ino == inode:
                it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                it.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return store


def connections() -> dict[Connection, int]:
    """TCP connections of this process, each with the port at its other end; none where the kernel is not Linux."""
    found = {}
    for file in map(int, os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ()):
        with suppress(OSError):
            status = os.stat(f"/proc/self/fd/{file}")
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(file)) as it:
                    if it.family in (socket.AF_INET, socket.AF_INET6):
                        # OSError for one that listens: gloo would abort the process if that were hung up
                        found[file, status.st_ino] = it.getpeername()[1]
    return found


def main(host: str, port: str) -> None:
    """Serve until this process is killed."""
    store = serve(host, int(port))
    print(f"the store listens at {host}:{store.port}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
