"""A native collective, counted as the messages of an algorithm with a name.

`dist.all_reduce` says nothing about the messages under it: gloo, NCCL and MPI each choose their own. So that bytes,
steps and replayed time mean one thing everywhere, a trace counts each native collective as if this algorithm ran:

| collective                    | counted as         | steps        | bytes sent by a rank, S its tensor       |
|-------------------------------|--------------------|--------------|------------------------------------------|
| all_reduce                    | ring               | 2(n-1)       | 2(n-1)/n · S                             |
| reduce_scatter                | ring               | n-1          | (n-1)/n · S                              |
| all_gather                    | ring               | n-1          | (n-1) · S                                |
| broadcast, reduce             | binomial tree      | ceil(log2 n) | S for each child / S once                |
| scatter, gather               | binomial tree      | ceil(log2 n) | S for each rank below the receiver / sender |
| all_to_all                    | pairwise           | n-1          | its splits, less its own                 |
| barrier                       | dissemination      | ceil(log2 n) | 0                                        |

Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH".

An algorithm is written from one rank's point of view, as rounds of moves: what the rank sends and receives at once
before it continues. A point-to-point call is the smallest case: one round of one move.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from .events import Event, Op


class Half(NamedTuple):
    """One side of a message. Halves with the same channel meet first in, first out."""

    sends: bool
    peer: int | None  # global rank of the other side
    bytes: int  # 0 in a receive of a native collective: its sender knows
    channel: tuple


@dataclass(frozen=True, slots=True)
class Lowered:
    """An event with the halves of messages that it stands for, round after round."""

    event: Event
    rounds: tuple[tuple[Half, ...], ...]
    algorithm: str  # "" for a send or a receive
    together: tuple[Event, ...]  # a collective: this call on every rank that made it; otherwise the event alone


def describe(call: Lowered) -> str:
    """A few words for a picture: "send to 1", "all_reduce as ring"."""
    event = call.event
    if event.op is Op.SEND:
        return f"send to {event.peer}"
    if event.op is Op.RECV:
        return f"recv from {'any' if event.peer is None else event.peer}"
    return f"{event.op} as {call.algorithm}"


class Move(NamedTuple):
    """A send or a receive of one round; `peer` is a group rank."""

    sends: bool
    peer: int
    bytes: int = 0


Rounds = list[list[Move]]


def lower(events: Sequence[Sequence[Event]]) -> tuple[tuple[Lowered, ...], ...]:
    """Every event of every rank as a call. The k-th collective of a group on one rank meets the k-th on the others."""
    keys = [_keys(of_rank) for of_rank in events]
    together = defaultdict(dict)
    for of_rank, rank_keys in zip(events, keys, strict=True):
        for event, key in zip(of_rank, rank_keys, strict=True):
            if key is not None:
                together[key][event.rank] = event
    return tuple(
        tuple(
            _point_to_point(event) if key is None else _collective(event, key, together[key])
            for event, key in zip(of_rank, rank_keys, strict=True)
        )
        for of_rank, rank_keys in zip(events, keys, strict=True)
    )


def _keys(events: Sequence[Event]) -> list[tuple | None]:
    """For each event of one rank: which collective of its group it is; None for a send or a receive."""
    seen: dict[tuple, int] = defaultdict(int)
    keys: list[tuple | None] = []
    for event in events:
        if event.op.point_to_point:
            keys.append(None)
            continue
        group = (event.group, event.group_name)
        keys.append((group, seen[group], event.op, event.peer))
        seen[group] += 1
    return keys


def _point_to_point(event: Event) -> Lowered:
    sends = event.op is Op.SEND
    src, dst = (event.rank, event.peer) if sends else (event.peer, event.rank)
    half = Half(sends, event.peer, event.bytes, (src, dst, event.tag, event.group, event.group_name))
    return Lowered(event, ((half,),), "", (event,))


def _collective(event: Event, key: tuple, present: dict[int, Event]) -> Lowered:
    """`event` by the algorithm its operation is counted as. Ranks that never called are taken to be like this one."""
    name, plan = COUNTED_AS[event.op]
    if event.rank not in event.group:
        return Lowered(event, (), name, (event,))
    everyone = [present.get(rank, event) for rank in event.group]
    rounds = []
    for moves in plan(event.group.index(event.rank), everyone):
        halves = []
        for move in moves:
            peer = event.group[move.peer]
            src, dst = (event.rank, peer) if move.sends else (peer, event.rank)
            halves.append(Half(move.sends, peer, move.bytes, (src, dst, key)))
        rounds.append(tuple(halves))
    return Lowered(event, tuple(rounds), name, tuple(present.values()))


def split(event: Event, n: int) -> list[int]:
    """Bytes of the n chunks of the event's tensor, as `Tensor.tensor_split` cuts it."""
    numel = prod(event.shape)
    item = event.bytes // numel if numel else 0
    return [(numel // n + (i < numel % n)) * item for i in range(n)]


def ring_all_gather(me: int, sizes: Sequence[int]) -> Rounds:
    """Pass to the right what came from the left; `sizes[i]` bytes are rank i's piece."""
    n = len(sizes)
    return [[Move(True, (me + 1) % n, sizes[(me - s) % n]), Move(False, (me - 1) % n)] for s in range(n - 1)]


def ring_reduce_scatter(me: int, sizes: Sequence[int]) -> Rounds:
    """Pass partial sums to the right, so that chunk i, of `sizes[i]` bytes, ends whole on rank i."""
    n = len(sizes)
    return [[Move(True, (me + 1) % n, sizes[(me - s - 1) % n]), Move(False, (me - 1) % n)] for s in range(n - 1)]


def ring_all_reduce(me: int, sizes: Sequence[int]) -> Rounds:
    """Reduce-scatter, then all-gather, around the same ring."""
    return ring_reduce_scatter(me, sizes) + ring_all_gather(me, sizes)


def tree_down(me: int, root: int, sizes: Sequence[int]) -> Rounds:
    """Binomial tree from the root: receive once, then send to ever nearer children.

    `sizes[v]` is what is meant for the rank v places after the root; a message carries all that its receiver needs for
    itself and those below it.
    """
    n, place = len(sizes), (me - root) % len(sizes)
    reach = 1
    while reach < n and not place & reach:
        reach *= 2
    rounds: Rounds = [[Move(False, (me - reach) % n)]] if place else []
    while reach > 1:
        reach //= 2
        if place + reach < n:
            rounds.append([Move(True, (me + reach) % n, sum(sizes[place + reach : place + 2 * reach]))])
    return rounds


def tree_up(me: int, root: int, sizes: Sequence[int]) -> Rounds:
    """The same tree towards the root: receive from ever farther children, then send once."""
    n, place = len(sizes), (me - root) % len(sizes)
    rounds: Rounds = []
    reach = 1
    while reach < n and not place & reach:
        if place + reach < n:
            rounds.append([Move(False, (me + reach) % n)])
        reach *= 2
    if place:
        rounds.append([Move(True, (me - reach) % n, sum(sizes[place : place + reach]))])
    return rounds


def same_down(me: int, root: int, n: int, size: int) -> Rounds:
    """Binomial tree from the root in which every message is the whole tensor."""
    return [[m._replace(bytes=size if m.sends else 0) for m in moves] for moves in tree_down(me, root, [0] * n)]


def same_up(me: int, root: int, n: int, size: int) -> Rounds:
    """Binomial tree towards the root in which every message is the whole tensor."""
    return [[m._replace(bytes=size if m.sends else 0) for m in moves] for moves in tree_up(me, root, [0] * n)]


def pairwise_all_to_all(me: int, sizes: Sequence[int]) -> Rounds:
    """In round i, send to the rank i places ahead and receive from the rank i places behind; `sizes[j]` goes to j."""
    n = len(sizes)
    return [[Move(True, (me + i) % n, sizes[(me + i) % n]), Move(False, (me - i) % n)] for i in range(1, n)]


def dissemination_barrier(me: int, n: int) -> Rounds:
    """In round k, an empty message to the rank 2^k ahead: after ceil(log2 n) rounds all have heard of all."""
    rounds: Rounds = []
    distance = 1
    while distance < n:
        rounds.append([Move(True, (me + distance) % n), Move(False, (me - distance) % n)])
        distance *= 2
    return rounds


def _root(event: Event) -> int:
    """Group rank of the root."""
    return event.group.index(event.peer)


def _after_root(everyone: Sequence[Event], root: int) -> list[int]:
    """Bytes of each rank's piece, starting with the root's."""
    return [event.bytes for event in [*everyone[root:], *everyone[:root]]]


def _broadcast(me: int, everyone: Sequence[Event]) -> Rounds:
    return same_down(me, _root(everyone[me]), len(everyone), everyone[me].bytes)


def _reduce(me: int, everyone: Sequence[Event]) -> Rounds:
    return same_up(me, _root(everyone[me]), len(everyone), everyone[me].bytes)


def _scatter(me: int, everyone: Sequence[Event]) -> Rounds:
    root = _root(everyone[me])
    return tree_down(me, root, _after_root(everyone, root))


def _gather(me: int, everyone: Sequence[Event]) -> Rounds:
    root = _root(everyone[me])
    return tree_up(me, root, _after_root(everyone, root))


def _all_gather(me: int, everyone: Sequence[Event]) -> Rounds:
    return ring_all_gather(me, [event.bytes for event in everyone])


def _reduce_scatter(me: int, everyone: Sequence[Event]) -> Rounds:
    return ring_reduce_scatter(me, split(everyone[me], len(everyone)))


def _all_reduce(me: int, everyone: Sequence[Event]) -> Rounds:
    return ring_all_reduce(me, split(everyone[me], len(everyone)))


def _all_to_all(me: int, everyone: Sequence[Event]) -> Rounds:
    return pairwise_all_to_all(me, everyone[me].splits or split(everyone[me], len(everyone)))


def _barrier(me: int, everyone: Sequence[Event]) -> Rounds:
    return dissemination_barrier(me, len(everyone))


COUNTED_AS: dict[Op, tuple[str, Callable[[int, Sequence[Event]], Rounds]]] = {
    Op.ALL_REDUCE: ("ring", _all_reduce),
    Op.REDUCE_SCATTER: ("ring", _reduce_scatter),
    Op.ALL_GATHER: ("ring", _all_gather),
    Op.BROADCAST: ("binomial tree", _broadcast),
    Op.REDUCE: ("binomial tree", _reduce),
    Op.SCATTER: ("binomial tree", _scatter),
    Op.GATHER: ("binomial tree", _gather),
    Op.ALL_TO_ALL: ("pairwise", _all_to_all),
    Op.BARRIER: ("dissemination", _barrier),
}
