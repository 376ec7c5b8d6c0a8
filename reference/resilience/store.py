"""A store that outlives those who take part: where they leave words for each other.

    python -m reference.resilience.store HOST PORT      on a machine that all reach, and that does not train

It is torch's `TCPStore`, a dictionary behind a port. Its host must not die: it is to a training what etcd or a
lighthouse (torchft) is, and small enough to be watched.
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from reference.errors import BadInput

OUT_OF_REACH = (dist.DistNetworkError, dist.DistStoreError)
Connect = Callable[[float], dist.TCPStore]
"""Makes a client of the store, whose questions may take so many seconds. Raises one of OUT_OF_REACH."""


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
    """A client of a store, whose questions may take so many seconds."""
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=patience))


def main(host: str, port: str) -> None:
    """Serve until this process is killed."""
    store = serve(host, int(port))
    print(f"the store listens at {host}:{store.port}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
