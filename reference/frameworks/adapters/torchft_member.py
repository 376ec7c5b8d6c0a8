"""A replica among those of torchft: its `Manager`, and its group, in which our tap hears what is said."""

from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore
from torchft import Manager, ProcessGroupGloo

from reference.trace.tap import Recorder, Tap

REPLICAS = 2
PACKAGES = ("torchft-nightly",)


class TappedGroup(ProcessGroupGloo):
    """torchft's group of gloo, which is made anew for each quorum, with our tap in it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(timeout=timedelta(seconds=20))
        self.recorder = recorder

    def _create_pg(self, store: Store, rank: int, world_size: int) -> Tap:
        carrier = super()._create_pg(store, rank, world_size)
        return Tap(carrier, tuple(range(world_size)), self.recorder, "gloo")


def member(recorder: Recorder, address: str, store: TCPStore, least: int, **options: Any) -> Manager:
    """The manager of a replica, which trains where there are so many of them at least."""
    return Manager(
        pg=TappedGroup(recorder),
        min_replica_size=least,
        init_sync=False,  # all begin with the same weights: else the first step counts one replica alone
        replica_id=f"replica_{recorder.rank}_",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=address,
        timeout=timedelta(seconds=30),
        **options,
    )
