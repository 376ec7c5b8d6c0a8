"""One answer for all: who says what in a round, decided once, by whichever rank first has all answers.

    answers = quorum.gather("round 7: gradients", "ready", members=[0, 1, 2])
    {0: "ready", 2: "ready"}                 the same on every rank that asks; rank 1 is gone

A rank that dies may have told some of the others and not the rest. If each of those decided by what it has heard,
they would decide differently. So there is one place for the answer, a key of a store, and the first rank that writes it
has decided; a store's compare-and-set makes sure that no two do. All others take what stands there, also a rank that
is slow, and reads that it is not among those that count.

A rank is taken for dead if its heartbeat has not moved for some time, by the clock of the rank that looks: clocks of
several machines need not agree. torchft's lighthouse does the same as a server of its own.

`membership` agrees in another way, for another end: a quorum answers a question once and is over, where a round of
members lasts, and a thread must watch it all the time to wake those who wait for one that has gone. What both share is
one line, the store's compare-and-set; a room for both would have names and numbered ranks, questions and rounds, and be
harder to read than each.
"""

import json
import threading
import time
from collections.abc import Collection
from typing import Protocol

import torch.distributed as dist

from reference.errors import BadInput

BEAT = 0.1  # seconds between heartbeats
LOOK = 0.003  # seconds between two looks at the store


class Quorum(Protocol):
    """What it takes to decide something together."""

    def gather(self, topic: str, answer: str, members: Collection[int] | None) -> dict[int, str]:
        """Say `answer`, and wait for those of the `members` that are alive; what counts, by rank. Once for a topic.

        A rank that does not know the members (None) waits until others have decided.
        """


class StoreQuorum:
    """A quorum over a store of torch, such as that of the world's group.

    Args:
        store: that all ranks share.
        rank: of this process.
        ranks: how many there may be: 0 to `ranks` - 1.
        patience: seconds after which a rank without a heartbeat is dead.
        together: ranks 0 to `together` - 1, the next so many, and so on, live and die together, as the ranks of one
            replica do.

    Raises:
        BadInput: for a patience that no heartbeat can meet.
    """

    def __init__(self, store: dist.Store, rank: int, ranks: int, patience: float = 3.0, together: int = 1) -> None:
        if patience < 3 * BEAT:
            raise BadInput(f"a heart beats every {BEAT} s: be patient for {3 * BEAT:.1f} s or more, not {patience}")
        self.store, self.rank, self.ranks, self.patience, self.together = store, rank, ranks, patience, together
        self._seen: dict[int, tuple[str, float]] = {}  # of each rank: its last heartbeat, and when it was new
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def close(self) -> None:
        """Be dead for the others."""
        self._ended.set()
        self._heart.join()

    def gather(self, topic: str, answer: str, members: Collection[int] | None) -> dict[int, str]:
        """As for `Quorum`. Ranks that are not among the members may answer, too: they count if they are early enough.

        Raises:
            TimeoutError: for a rank that does not know the members, where no other one is alive.
        """
        self.store.set(f"{topic}, says {self.rank}", answer)
        decided = f"{topic}, decided"
        while not self.store.check([decided]):
            if members is None and not any(self.is_alive(rank) for rank in range(self.ranks) if rank != self.rank):
                raise TimeoutError(f"rank {self.rank} waits for others to decide {topic}, and none of them is alive")
            said = {rank: found for rank in range(self.ranks) if (found := self.read(f"{topic}, says {rank}"))}
            if members is not None and all(rank in said or not self.is_alive(rank) for rank in members):
                self.store.compare_set(decided, "", json.dumps(said))
                break
            time.sleep(LOOK)
        return {int(rank): said for rank, said in json.loads(self.store.get(decided)).items()}

    def read(self, key: str) -> str | None:
        """What stands under a key; None where nothing does, without waiting."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def is_alive(self, rank: int) -> bool:
        """Whether the heart of a rank, and those of the ranks that live and die with it, have beaten lately."""
        first = rank - rank % self.together
        return all(self._beats(each) for each in range(first, first + self.together))

    def _beats(self, rank: int) -> bool:
        now, found = time.monotonic(), self.read(f"heart of {rank}")
        before, since = self._seen.get(rank, (None, now))
        if rank not in self._seen or found != before:
            self._seen[rank] = (found, now)
            return True
        return now - since < self.patience

    def _beat(self) -> None:
        beats = 0
        while not self._ended.is_set():
            beats += 1
            self.store.set(f"heart of {self.rank}", str(beats))
            self._ended.wait(BEAT)
