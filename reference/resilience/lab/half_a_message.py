"""A rank dies in the middle of a message: how long its other end waits, in a group of gloo and in one of a round.

    python -m reference.resilience.lab.half_a_message

When a connection breaks, gloo looks at messages that were announced, and forgets the one that is under way. So the
rank at its other end waits for as long as its group allows: half an hour, where nothing else is said.
"""

import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.resilience.lab.faults import hang
from reference.resilience.membership import Membership
from reference.resilience.round_group import PATIENCE, world
from reference.resilience.store import reach, serve

MESSAGE = 64_000_000  # float32: far more than sockets hold, so that it is under way when its other end dies
DIES_AFTER = 0.5  # seconds in which the rank that dies does nothing


def heard_after(sends: int, patience: float | None = None) -> float:
    """Seconds after which rank 0 has heard that rank 1 has died.

    Args:
        sends: the rank whose message it is, 0 or 1; the other receives.
        patience: seconds that a plain group of gloo allows; None for the group of a round, whose waits end with it.
    """
    store = serve()
    with Cluster(2, timeout=2 * PATIENCE) as cluster:
        waited, _ = cluster.survive(_half, store.port, sends, patience)
    return waited


def _half(port: int, sends: int, patience: float | None) -> float:
    rank = dist.get_rank()
    dist.destroy_process_group()
    store, message = reach("127.0.0.1", port, PATIENCE), torch.zeros(MESSAGE)
    with _of_round(port, rank) if patience is None else _of_gloo(port, rank, patience):
        dist.barrier()
        if rank == 1:
            store.wait(["the other end has begun"])
        work = (dist.isend if rank == sends else dist.irecv)(message, 1 - rank)
        if rank == 1:
            hang(DIES_AFTER)
        store.set("the other end has begun", "")
        began = time.monotonic()
        try:
            work.wait()
        except RuntimeError:
            return time.monotonic() - began
    raise AssertionError("the message has come, though one of its ends had died")


@contextmanager
def _of_round(port: int, rank: int):
    membership = Membership(partial(reach, "127.0.0.1", port), str(rank), at_first=2)
    try:
        with world(membership.agree(), membership, connected=PATIENCE):
            yield
    finally:
        membership.close()


@contextmanager
def _of_gloo(port: int, rank: int, patience: float):
    store = reach("127.0.0.1", port, PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=patience))
    yield


if __name__ == "__main__":
    print(f"a group of gloo that allows 10 s: {heard_after(sends=0, patience=10):.1f} s")
    print(f"a group that knows the round: {heard_after(sends=0):.1f} s")
