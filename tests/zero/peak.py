"""How many bytes there are at once, of storages that grow and shrink without an operation of torch, as FSDP's do."""

import weakref

from torch import UntypedStorage

from reference.memory.lab.storages import Storages


class Peak(Storages):
    """The most bytes that were alive at the end of an operation, of all that was made since it was entered."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    def born(self, key: int, storage: UntypedStorage) -> None:
        if storage.device.type != "meta":
            self._alive[key] = weakref.ref(storage)

    def died(self, key: int) -> None:
        self._alive.pop(key, None)

    def after(self) -> None:
        alive = [storage for reference in self._alive.values() if (storage := reference()) is not None]
        self.bytes = max(self.bytes, sum(storage.nbytes() for storage in alive))
