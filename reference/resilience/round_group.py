"""The members of a round as torch's world, in which waits end once the round is over.

`ncclCommAbort` wakes those who wait on NCCL. gloo has no such call: it tells only those who talk to the dead one, and
of these not those whose data are half sent or half received when the connection breaks (`Pair::signalException` in its
`tcp/pair.cc` looks at messages that are announced, and not at those under way). So three things are done:

    a thread looks at the membership, and hangs up all connections of the round once it is over;
    a wait looks up from time to time whether the round is over, and leaves a call behind that gloo has forgotten;
    ranks connect on a thread, which is left behind where the round is over before all were connected.
"""

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work
from torch.distributed import distributed_c10d as c10d

from reference.process_group import PythonGroup, called, connect, register_backend
from reference.trace.requests import MessageRequest, Request

from .membership import Membership, Round
from .store import Connection, connections

NAME = "elastic"  # of the backend
LOOK = timedelta(seconds=0.1)  # between two looks whether the round is over
PATIENCE = 60.0  # seconds that one message may take where all members say that they live
_SAME = """
    broadcast reduce gather scatter allreduce allreduce_coalesced allgather allgather_coalesced
    reduce_scatter alltoall barrier gather_single gather_into_tensor
"""
_NEW = {  # names of torch 2.13; gloo's own group goes by those from before
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
COLLECTIVES = {
    name: name for name in (*_SAME.split(), *_NEW.values())
} | _NEW  # of a group; and what its carrier calls them
MESSAGES = ("send", "recv", "recv_anysource")


class RoundOver(RuntimeError):
    """This round is over, and the next one begins."""


@contextmanager
def world(of: Round, membership: Membership, connected: float) -> Iterator[dist.ProcessGroup]:
    """The members of a round as torch's world, connected to each other until the round is over.

    Args:
        connected: seconds in which the ranks of a group must have connected.
    """
    _forget()
    _now.over, _now.connected = lambda: membership.over, connected
    store = WhileItLasts(membership, of)  # must be held: torch has its C++ half alone
    before = connections().keys()

    def of_round() -> set[Connection]:
        return {one for one, port in connections().items() if one not in before and port != membership.port}

    membership.on_over(lambda: hang_up(of_round()))
    c10d._world.group_count = 0  # groups are found by their numbers, and one that could not be made has counted
    try:
        dist.init_process_group(
            backend(),
            store=dist.PrefixStore(f"world {of.number}", store),
            rank=of.members.index(membership.name),
            world_size=len(of.members),
        )
        yield dist.group.WORLD
    finally:
        membership.on_over(lambda: None)
        hang_up(of_round())  # what is under way ends now, on both sides
        _left_behind.extend(group for group in c10d._world.pg_map if isinstance(group, RoundGroup))
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget()
        gc.collect()  # models and hooks hold groups


class RoundGroup(PythonGroup):
    """gloo, whose waits end when the round is over."""

    def __init__(self, carrier: ProcessGroup) -> None:
        super().__init__(carrier, NAME)
        self.under_way: list[Work] = []  # collectives, which threads of the carrier carry out

    def collective(self, work: Work) -> Work:
        """The request of a collective."""
        self.under_way = [*(each for each in self.under_way if not each.is_completed()), work]
        return UntilOver(work)

    def message(self, work: Work) -> Work:
        """The request of a send or a receive."""
        return UntilOver(MessageRequest(work, timedelta(seconds=PATIENCE)))


def _method(kind: Callable[[RoundGroup, Work], Work], name: str) -> Callable[..., Work]:
    """A method of `RoundGroup`: the carrier's method of this name."""
    return lambda self, *given, **named: kind(self, getattr(self.carrier, name)(*given, **named))


for _name in MESSAGES:
    setattr(RoundGroup, _name, _method(RoundGroup.message, _name))
for _name, _of_carrier in COLLECTIVES.items():
    setattr(RoundGroup, _name, _method(RoundGroup.collective, _of_carrier))


@called(Work)
class UntilOver(Request):
    """A request whose wait ends with its call, or with the round."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the call is done; True. Raises RoundOver."""
        while not self._carried.is_completed():
            with suppress(RuntimeError):  # not yet; or an error, which comes again below
                if self._carried.wait(LOOK):
                    return True  # gloo's reduce-scatter of one rank never says that it is completed
            if _now.over() and not self._carried.is_completed():
                raise RoundOver("a member has left or has gone, and this call waits for it")
        return self._carried.wait()

    def is_completed(self) -> bool:
        """True once the call is done."""
        return self._carried.is_completed()


@dataclass
class _Now:
    """What groups of this process ask, which is in one world at a time."""

    over: Callable[[], bool] = lambda: False  # whether the round is
    connected: float = PATIENCE


_now = _Now()
_left_behind: list[RoundGroup] = []  # until calls end that gloo has forgotten: its group would wait for them


def _until_over(make: Callable[[], ProcessGroup]) -> ProcessGroup:
    """What `make` makes, on a thread that is left to itself where the round is over first."""
    made: Future[ProcessGroup] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # it belongs to the caller
            made.set_exception(error)

    Thread(target=run, name="connects", daemon=True).start()
    while True:
        with suppress(TimeoutError):
            return made.result(LOOK.total_seconds())
        if _now.over():
            raise RoundOver("a member has left or has gone before all were connected")


def _forget() -> None:
    """Let groups go that have nothing under way."""
    _left_behind[:] = [group for group in _left_behind if not all(work.is_completed() for work in group.under_way)]


@cache
def backend() -> str:
    """A backend of torch's: gloo, whose waits end when the round is over."""

    def create(options: Any, _: Any) -> RoundGroup:
        group = _until_over(lambda: connect(dist.Backend.GLOO, options, timedelta(seconds=_now.connected)))
        group._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=PATIENCE))
        return RoundGroup(group)

    register_backend(NAME, create)
    return NAME


class WhileItLasts(dist.Store):
    """The store as ranks of a round see it that find each other: none waits there for one that has gone."""

    def __init__(self, membership: Membership, of: Round) -> None:
        super().__init__()
        self._membership, self._store, self._round = membership, membership.store, of

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def has_extended_api(self) -> bool:
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        while not self._store.check(keys):
            if self._membership.over or self._membership.round != self._round:
                raise RoundOver("a member has gone before all were connected")
            time.sleep(0.001)


def hang_up(these: set[Connection]) -> None:
    """Shut connections: what waits on them, here and at the other end, fails."""
    for file, inode in these:
        with suppress(OSError):
            if os.stat(f"/proc/self/fd/{file}").st_ino == inode:
                with socket.socket(fileno=os.dup(file)) as it:
                    it.shutdown(socket.SHUT_RDWR)
