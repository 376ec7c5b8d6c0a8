"""A supervisor of three ranks, told by hand what ranks report, in any order and as late as one likes."""

from collections import Counter
from collections.abc import Callable
from itertools import count

from reference.cluster.watch.supervisor import Supervisor
from reference.trace import Event, Op

CALL = {"what": "post", "function": "call", "strides": [], "pieces": [], "receives": [], "width": 4}


class Told:
    """A supervisor of three ranks, and short ways to report to it."""

    def __init__(self, ready: Callable[[int], bool] = lambda rank: False) -> None:
        self.supervisor = Supervisor(3, ready)
        self.numbers = [count() for _ in range(3)]
        self.last = Counter()
        self.waiting: dict[int, int | None] = {}  # by rank: the other side of the call that it waits for

    def __call__(self, rank: int, op: str, peer: int | None, elements: int = 2) -> None:
        """`rank` posts a send, a receive or a collective, and waits for it. What it waited for before is over, then.

        Of a receive from any rank it says so in `heard`, or never: its future was waited for where nothing sees it.
        """
        if self.waiting.get(rank) is not None:
            self.heard(rank, self.waiting[rank])
        self.waiting[rank] = peer
        self.last[rank] = number = next(self.numbers[rank])
        event = Event(
            rank, Op(op), (0, 1, 2), peer, 0, (elements,), "float32", 4 * elements, (), "", "f.py", 1,
            posted=2 * number, completed=None, begin=0.0, end=None, group_name="0",
        )  # fmt: skip
        self.supervisor.take(rank, CALL | {"number": number, "event": event.row()})
        wait = {"file": "f.py", "line": 1, "thread": rank, "name": "", "others": 0}
        self.supervisor.take(rank, {"what": "wait", "number": number, **wait})

    def heard(self, rank: int, source: int) -> None:
        """The receive that `rank` has posted last has got its message from `source`."""
        number = self.last[rank]
        now = {"tick": 2 * number + 1, "end": 0.0}
        self.supervisor.take(rank, {"what": "completed", "number": number, "peer": source, **now})

    def verdict(self) -> object:
        """What follows once all ranks have returned."""
        assert self.supervisor.judge() is None
        for rank in range(3):
            self.supervisor.finish(rank)
        return self.supervisor.judge()
