"""Programs written by hand, as the events that their ranks would leave behind."""

from collections.abc import Callable
from dataclasses import replace

from reference.trace import Event, Op, Trace

ITEM = 4  # float32


class Rank:
    """One rank's script: each method is a call to torch.distributed. A tick passes at each post and at each return."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world = tuple(range(world_size))
        self.ticks = 0
        self.events: list[Event] = []

    def post(self, op: Op, numel: int = 0, peer: int | None = None, **more) -> int:
        """Start a call on `numel` float32; returns its place, for `wait`."""
        fields = {
            "rank": self.rank,
            "op": op,
            "group": self.world,
            "peer": peer,
            "tag": 0,
            "shape": (numel,),
            "dtype": "float32",
            "bytes": numel * ITEM,
            "splits": (),
            "reduce": "",
            "file": "program.py",
            "line": len(self.events) + 1,
            "posted": self._tick(),
            "completed": None,
            "begin": self.ticks * 1e-6,
            "end": None,
        }
        self.events.append(Event(**{**fields, **more}))
        return len(self.events) - 1

    def wait(self, *places: int) -> None:
        """Wait for calls, one after another."""
        for place in places:
            tick = self._tick()
            self.events[place] = replace(self.events[place], completed=tick, end=self.ticks * 1e-6)

    def call(self, op: Op, numel: int = 0, peer: int | None = None, **more) -> None:
        """A blocking call."""
        self.wait(self.post(op, numel, peer, **more))

    def send(self, dst: int, numel: int, **more) -> None:
        self.call(Op.SEND, numel, dst, **more)

    def recv(self, src: int, numel: int, **more) -> None:
        self.call(Op.RECV, numel, src, **more)

    def exchange(self, dst: int, sent: int, src: int, received: int) -> None:
        """Send and receive in one batch, as `dist.batch_isend_irecv`."""
        self.wait(self.post(Op.SEND, sent, dst), self.post(Op.RECV, received, src))

    def _tick(self) -> int:
        self.ticks += 1
        return self.ticks - 1


def trace(world_size: int, program: Callable[[Rank], None]) -> Trace:
    """The trace that `program`, run on every rank, would leave."""
    ranks = [Rank(rank, world_size) for rank in range(world_size)]
    for rank in ranks:
        program(rank)
    return Trace(world_size, tuple(tuple(rank.events) for rank in ranks))


def chunk(numel: int, n: int, i: int) -> int:
    """Elements of chunk i of n, as `Tensor.tensor_split` cuts it."""
    return numel // n + (i % n < numel % n)


def ring_reduce_scatter(rank: Rank, numel: int) -> None:
    n, me = len(rank.world), rank.rank
    for step in range(n - 1):
        sent, received = chunk(numel, n, me - step - 1), chunk(numel, n, me - step - 2)
        rank.exchange((me + 1) % n, sent, (me - 1) % n, received)


def ring_all_gather(rank: Rank, numel: int) -> None:
    n, me = len(rank.world), rank.rank
    for step in range(n - 1):
        sent, received = chunk(numel, n, me - step), chunk(numel, n, me - step - 1)
        rank.exchange((me + 1) % n, sent, (me - 1) % n, received)


def ring_all_reduce(rank: Rank, numel: int) -> None:
    ring_reduce_scatter(rank, numel)
    ring_all_gather(rank, numel)


def naive_all_reduce(rank: Rank, numel: int) -> None:
    """Every rank sends to rank 0, one after another; rank 0 sends the sum to all."""
    n = len(rank.world)
    if rank.rank:
        rank.send(0, numel)
        rank.recv(0, numel)
        return
    for src in range(1, n):
        rank.recv(src, numel)
    for dst in range(1, n):
        rank.send(dst, numel)


def tree_broadcast(rank: Rank, numel: int) -> None:
    """Binomial tree from rank 0: in step k, the ranks below 2^k send to the rank 2^k ahead."""
    n, me = len(rank.world), rank.rank
    distance = 1
    while distance < n:
        if me < distance and me + distance < n:
            rank.send(me + distance, numel)
        elif distance <= me < 2 * distance:
            rank.recv(me - distance, numel)
        distance *= 2


def recursive_doubling_all_reduce(rank: Rank, numel: int) -> None:
    """n a power of two: swap whole tensors with the partner 1, 2, 4, ... away."""
    n, me = len(rank.world), rank.rank
    distance = 1
    while distance < n:
        rank.exchange(me ^ distance, numel, me ^ distance, numel)
        distance *= 2


def one_batch_all_to_all(rank: Rank, numel: int) -> None:
    """Everything at once: n-1 sends and n-1 receives in one batch."""
    others = [r for r in rank.world if r != rank.rank]
    rank.wait(*[rank.post(Op.SEND, numel, dst) for dst in others], *[rank.post(Op.RECV, numel, src) for src in others])
