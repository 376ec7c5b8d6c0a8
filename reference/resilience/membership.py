"""Membership: those who live agree on a list, round after round, through a store that outlives them all.

Training needs one list of ranks that all of them know. When one dies, hangs, is cut off or comes, the round is
over, and those who live agree on the next list (TorchElastic calls it rendezvous, torchft a quorum):

    1. Each says that it lives, again and again (a beat). One that was not heard for a `lease` does not take part. The
       time in which one did not listen does not count: a process that has stood still knows nothing of the others.
    2. To end a round is to arrive at the next one. A rank that sees a member arrive there leaves, too.
    3. Once all who live have arrived, any of them proposes those who have. The store keeps the first proposal
       (compare and set): that is the list, also for those who made another one.
    4. One that comes too late for it arrives at the round after.

A beat is a number that counts up, and each measures with a clock of its own how long it has stood still: no two
clocks are compared, and none may jump (`time.monotonic`). No clock can tell a slow rank from a dead one; a rank that
was only slow comes back as a guest, and no state is lost, for whatever it did after its round it did alone.

`quorum` is another mechanism on purpose: it answers one question among numbered ranks, twice in a step, and no rank
must be woken, since each waits for others there alone. Here names are open, a list lasts for many steps, and its end
must reach ranks in the middle of a message.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import torch.distributed as dist

from .store import OUT_OF_REACH, Connect, Roll

BEAT = 0.1  # seconds between two beats, and between two looks at those of others
GONE = "gone"  # in the place of a beat: the last word of one who leaves
LEASE = 5.0  # seconds without a beat, after which a member has gone; a busy machine may hold one up for some
LOOK = 0.02  # seconds between two looks at what tells sooner: who waits for the next round, and processes nearby
_COMING = 60.0  # seconds that a process which comes gives a busy store
_PATIENCE = 10.0  # seconds that a question to the store may take where nothing else is to be done
SETTLED = 0.05  # seconds without another arrival, after which a list is proposed


@dataclass(frozen=True)
class Round:
    """A list that all of its members know.

    Attributes:
        number: 1, 2, ...
        members: names, in the order of their ranks.
    """

    number: int
    members: tuple[str, ...]


class Membership:
    """One process among those who take part.

    Args:
        connect: makes a new client of the store, whose questions may take so many seconds; where it cannot be reached,
            `torch.distributed.DistNetworkError` or `DistStoreError` is raised.
        name: of this process. A process that is started anew takes another name.
        lease: seconds without a beat, after which others count this process as gone, and it them.
        at_first: how many must have come before there is a first round.
    """

    def __init__(self, connect: Connect, name: str, lease: float = LEASE, at_first: int = 1) -> None:
        self.name, self.lease, self.at_first = name, lease, at_first
        self.round = Round(0, ())
        self._connect = connect
        first = connect(_COMING)
        self.port = first.port  # where the store listens
        self._watch = _Watch(connect, first, name, lease)
        self.store = self._reach()  # for the thread that made this

    def agree(self) -> Round:
        """Leave the round, and agree on the next one with all who live. Returns it once this process is in it."""
        self._watch.rest()
        while True:
            try:
                self.round = self._next()
                break
            except OUT_OF_REACH:
                self.store = self._reach()
        self._watch.attend(self.round)
        return self.round

    @property
    def over(self) -> bool:
        """Whether a member has left the round, or has gone: those who continue are alone."""
        return self._watch.over.is_set()

    @property
    def guests(self) -> bool:
        """Whether a guest waits to be let in: the members should leave together, after a step."""
        return self._watch.guests.is_set()

    def on_over(self, do: Callable[[], None]) -> None:
        """Have something done by a thread once a round is over, and again while it stays so.

        It is to end the waiting for those who have left.
        """
        self._watch.end = do

    def tell(self, word: str) -> None:
        """Leave a word for all who take part, now and later."""
        self.store.set(f"word/{word}", "")

    def told(self, word: str) -> bool:
        """Whether this word was left."""
        return self.store.check([f"word/{word}"])

    def close(self) -> None:
        """Take part no longer. Others see it at once."""
        self._watch.close(self.store)

    def _reach(self) -> dist.Store:
        """A client of the store. Where this process is cut off, it waits until it is not."""
        while True:
            with suppress(OUT_OF_REACH):
                return self._connect(_PATIENCE)

    def _next(self) -> Round:
        """The next round that has this process in its list."""
        number = max(self.round.number, self._latest()) + 1
        while self.name not in (members := self._decide(number)):
            number += 1
        return Round(number, members)

    def _decide(self, number: int) -> tuple[str, ...]:
        """Arrive at a round, and wait for its list."""
        here, since = arrivals(number), time.monotonic()
        here.write(self.store, self.name)
        while not self.store.check([f"round/{number}"]):
            now = time.monotonic()
            since = now if here.news(self.store) else since
            living = self._watch.living()
            enough = number > 1 or self._watch.known >= self.at_first
            if enough and now - since >= SETTLED and here.names.issuperset(living):
                self.store.compare_set(f"round/{number}", "", json.dumps(sorted(here.names.intersection(living))))
            time.sleep(LOOK)
        self.store.set("latest", str(number))
        return tuple(json.loads(self.store.get(f"round/{number}")))

    def _latest(self) -> int:
        return int(self.store.get("latest")) if self.store.check(["latest"]) else 0


def arrivals(number: int) -> Roll:
    """The names of those that wait for a round, or are in it."""
    return Roll(f"arrivals/{number}")


class _Watch:
    """A thread that beats, and looks at the beats of others.

    Args:
        connect: as for `Membership`: the thread has a client of its own.
        store: of the one that makes this, for the first words.
    """

    def __init__(self, connect: Connect, store: dist.Store, name: str, lease: float) -> None:
        self.connect, self.name, self.lease = connect, name, lease
        self.over, self.guests, self.end = Event(), Event(), lambda: None
        self._round, self._next, self._names = Round(0, ()), arrivals(1), Roll("names")
        self._beats: dict[str, tuple[bytes, float]] = {}  # by name: the last beat, and when it was new here
        self._listened = 0.0  # seconds: the clock of `_beats`, which stands still while this process does
        self._looked = time.monotonic()
        self._places: dict[str, str] = {}  # by name: machine and process
        self._closed = Event()
        store.set(f"place/{name}", f"{machine()}/{os.getpid()}")
        store.set(f"beat/{name}", "0")
        self._names.write(store, name)
        self._look(store)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def living(self) -> list[str]:
        """All who take part, by their beats."""
        return [name for name in list(self._beats) if self.lives(name)]

    @property
    def known(self) -> int:
        """How many have ever come."""
        return len(self._beats)

    def lives(self, name: str) -> bool:
        """Whether one has been heard lately. Of a process on this machine the kernel knows better."""
        beat, heard = self._beats.get(name, (GONE.encode(), 0.0))
        if beat == GONE.encode() or self._listened - heard > self.lease:
            return False
        machine_of, pid = self._places[name].rsplit("/", 1)
        return machine_of != machine() or runs(int(pid))

    def attend(self, to: Round) -> None:
        """Watch a round."""
        self.over.clear()
        self.guests.clear()
        self._round = to

    def rest(self) -> None:
        """Watch none."""
        self._round = Round(0, ())

    def close(self, store: dist.Store) -> None:
        """End the thread, and say so."""
        self._closed.set()
        self._thread.join()
        with suppress(OUT_OF_REACH):
            store.set(f"beat/{self.name}", GONE)

    def _run(self) -> None:
        count, next_beat, store = 0, 0.0, None
        while not self._closed.wait(LOOK):
            watched = self._round  # its members were there before what is heard from now on
            try:
                store = store or self.connect(self.lease)
                if time.monotonic() >= next_beat:
                    count, next_beat = count + 1, time.monotonic() + BEAT
                    store.set(f"beat/{self.name}", str(count))
                    self._look(store)
                self._judge(watched, store)
            except RuntimeError:  # the store is out of reach: so are the others, as far as this process can know
                store = None
                self._finish(watched)

    def _look(self, store: dist.Store) -> None:
        """Hear the beats of all."""
        now = time.monotonic()
        self._listened += min(now - self._looked, self.lease / 4)
        self._looked = now
        for name in self._names.news(store):
            self._places[name] = store.get(f"place/{name}").decode()
        beats = store.multi_get([f"beat/{name}" for name in self._places])
        for name, beat in zip(list(self._places), beats, strict=True):
            if beat != self._beats.get(name, (b"", 0.0))[0]:
                self._beats[name] = beat, self._listened

    def _judge(self, watched: Round, store: dist.Store) -> None:
        """See whether a round is over, or a guest waits for the next one."""
        if not watched.number:
            return
        if self.over.is_set():  # what has begun to wait since must be woken, too
            return self._finish(watched)
        following = arrivals(watched.number + 1)
        if following.title != self._next.title:
            self._next = following
        self._next.news(store)
        if not self._beats.keys() >= {*watched.members}:  # one that came since the last beat has not been heard yet
            self._look(store)
        if any(name in self._next.names or not self.lives(name) for name in watched.members):
            self._finish(watched)
        elif self._next.names:
            self.guests.set()

    def _finish(self, watched: Round) -> None:
        if watched.number and watched == self._round:
            self.over.set()
            self.end()


def machine() -> str:
    """By which processes of one machine, or of one node of `Nodes`, know each other."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}-{os.stat('/proc/self/ns/net').st_ino}"
    return f"unknown-{os.getpid()}"


def runs(pid: int) -> bool:
    """Whether a process of this machine runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
