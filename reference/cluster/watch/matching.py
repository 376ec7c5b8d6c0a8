"""Which calls belong together: sends with receives, and each rank's k-th collective on a group with the others'.

The watch takes the strict view of MPI and NCCL: a send is complete when its receive is there. What passes here passes
everywhere; that gloo lets small sends through is luck.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from ...trace import Op
from ..errors import GroupError, MismatchError, RankError
from .posted_calls import PostedCall, blame, elements_text, ranks_text
from .races import Races

Finding = tuple[int, int, RankError]  # the number of a call on its rank, the rank, what is wrong


class Mailbox:
    """Sends and receives that wait for each other."""

    def __init__(self, races: Races) -> None:
        self.races = races
        self.waiting: dict[tuple[str, int, int | None], list[PostedCall]] = defaultdict(list)  # (group, src, dst)
        self.counts: dict[tuple[str, int, int], int] = defaultdict(int)
        self.misfits: list[Finding] = []  # pairs that do not agree

    def post(self, post: PostedCall) -> None:
        """Pair a new send or receive with the oldest that fits, and note it among `misfits` if they do not agree.

        The partner of a receive from any rank is a guess until it is `resolved`: another's message, of which the
        report is still to come, may have been first.
        """
        partner = next((other for other in self._candidates(post) if other.tag == post.tag), None)
        if partner is None:
            self._box(post).append(post)
            self._box(post).sort(key=lambda other: other.number)
            return
        self._box(partner).remove(partner)
        send, recv = (post, partner) if post.op == Op.SEND else (partner, post)
        for one, other in ((send, recv), (recv, send)):
            one.matched, one.partners = True, (other,)
        self.races.served(recv)
        if recv.peer is not None or recv.source is not None:
            self._compare(send, recv)

    def resolved(self, recv: PostedCall, source: int) -> None:
        """A receive from any rank has got its message from `source`: if its partner is another one, pair both anew."""
        if recv.matched and recv.partners[0].rank == source:
            recv.source = source
            self._compare(recv.partners[0], recv)
            return
        if not recv.matched:
            self._box(recv).remove(recv)
        recv.source, again = source, (recv, *recv.partners)
        for post in again:
            post.matched, post.partners = False, ()
        for post in again:
            self.post(post)

    def unmatched(self) -> Iterator[PostedCall]:
        """Sends and receives without a partner so far."""
        for posts in self.waiting.values():
            yield from posts

    def almost(self, post: PostedCall) -> PostedCall | None:
        """A message that would be the partner of `post` with its tag, or in its group."""
        fits = (other for other in self._candidates(post) if other.tag != post.tag)
        elsewhere = (
            other
            for other in self.unmatched()
            if other.group_name != post.group_name and {other.op, post.op} == {Op.SEND, Op.RECV}
            if (other.rank, other.peer) == (post.peer, post.rank)
        )
        return next(fits, None) or next(elsewhere, None)

    def _candidates(self, post: PostedCall) -> Iterator[PostedCall]:
        """Calls of the other side between the same two ranks, oldest first."""
        if post.op == Op.SEND:
            for source in (post.rank, None):
                yield from (p for p in self._between(post.group_name, source, post.peer) if p.op == Op.RECV)
        elif (source := _source(post)) is not None:
            yield from (p for p in self._between(post.group_name, source, post.rank) if p.op == Op.SEND)
        else:
            for source in post.group:
                yield from (p for p in self._between(post.group_name, source, post.rank) if p.op == Op.SEND)

    def _between(self, group: str, src: int | None, dst: int | None) -> list[PostedCall]:
        return self.waiting.get((group, src if src is not None else -1, dst), [])

    def _box(self, post: PostedCall) -> list[PostedCall]:
        src, dst = (post.rank, post.peer) if post.op == Op.SEND else (_source(post), post.rank)
        return self.waiting[post.group_name, src if src is not None else -1, dst]

    def _compare(self, send: PostedCall, recv: PostedCall) -> None:
        """Note a message whose two ends want different sizes or dtypes."""
        key = (send.group_name, send.rank, recv.rank)
        self.counts[key] += 1
        if send.elements == recv.elements and send.dtype == recv.dtype:
            return
        if send.elements != recv.elements:
            kind, what = "sizes differ", "the wrong size"
            ends = (f"sends {elements_text(send.elements)}", f"receives {elements_text(recv.elements)}")
        else:
            kind, what = "dtypes differ", "the wrong dtype"
            ends = (f"sends {send.dtype}", f"receives {recv.dtype}")
        message = f"message {self.counts[key]} has {what} (from rank {send.rank} to rank {recv.rank}):"
        line = f"rank {send.rank} {ends[0]} ({send.place}), rank {recv.rank} {ends[1]} ({recv.place})"
        self.misfits.append((recv.number, recv.rank, blame(MismatchError, kind, recv, message, line)))


def _source(recv: PostedCall) -> int | None:
    """The source that a receive names or has matched."""
    return recv.source if recv.peer is None else recv.peer


class CollectiveRounds:
    """The collectives of each group, round by round."""

    def __init__(self) -> None:
        self.rounds: dict[tuple[str, int], dict[int, PostedCall]] = {}
        self.counts: dict[tuple[int, str], int] = defaultdict(int)

    def post(self, post: PostedCall) -> dict[int, PostedCall]:
        """Put a call in its round; the round so far, by rank."""
        key = (post.rank, post.group_name)
        self.counts[key] += 1
        post.ordinal = self.counts[key]
        calls = self.rounds.setdefault((post.group_name, post.ordinal), {})
        calls[post.rank] = post
        if len(calls) == len(post.group):
            for call in calls.values():
                call.matched, call.partners = True, tuple(calls.values())
            del self.rounds[post.group_name, post.ordinal]
        return calls

    def unmatched(self) -> Iterator[PostedCall]:
        """One call of each round that is not complete."""
        yield from (next(iter(calls.values())) for calls in self.rounds.values())

    def of(self, post: PostedCall) -> dict[int, PostedCall]:
        """The calls that have joined the round of an unmatched call."""
        return self.rounds.get((post.group_name, post.ordinal), {post.rank: post})


# What the calls of one round must agree in, and how a difference is put. The first that differs is the one to tell.
_AGREEMENTS: list[tuple[str, Callable[[PostedCall], object]]] = [
    ("different collectives", lambda p: (p.op, p.function == "monitored_barrier")),
    ("roots differ", lambda p: p.peer),
    ("reduce ops differ", lambda p: p.reduce),
    ("dtypes differ", lambda p: p.dtype),
    ("a list beside one tensor", lambda p: p.op != Op.ALL_TO_ALL and bool(p.pieces)),
    ("shapes differ", lambda p: None if p.op == Op.ALL_TO_ALL else (p.shape, p.pieces)),
    ("memory layouts differ", lambda p: p.strides),
]


def disagreement(calls: dict[int, PostedCall]) -> RankError | None:
    """The error of a round whose calls do not fit together, or None."""
    posts = [calls[rank] for rank in sorted(calls)]
    for kind, of in _AGREEMENTS:
        if all(of(post) == of(posts[0]) for post in posts[1:]):
            continue
        groups: dict[object, list[PostedCall]] = defaultdict(list)
        for post in posts:
            groups[of(post)].append(post)
        return _unequal(kind, groups)
    return _splits(calls) if posts[0].op == Op.ALL_TO_ALL else None


def _unequal(kind: str, groups: dict[object, list[PostedCall]]) -> RankError:
    smallest = min(groups.values(), key=lambda posts: (len(posts), -posts[0].rank))
    blamed = smallest[0]
    if blamed.makes_group and kind == "shapes differ":
        kind = "new_group with different ranks: every rank must call it with the same ranks, in the same order"
    everybody = [post for posts in groups.values() for post in posts]
    if blamed.op == Op.ALL_GATHER and kind == "shapes differ" and len({post.elements for post in everybody}) > 1:
        sizes = ", ".join(f"rank {post.rank} has {post.elements}" for post in everybody)
        kind += f": all_gather wants equal pieces; sizes by rank: {sizes}"
    if kind.startswith("a list"):
        kind += ": the two travel in different ways, so every rank must call the same function"
    parts = [
        f"{ranks_text(p.rank for p in posts)} {_value(kind, posts[0])} ({posts[0].place})" for posts in groups.values()
    ]
    error = GroupError if blamed.makes_group else MismatchError
    ordinal = f"call #{blamed.ordinal} on this group" if blamed.ordinal > 1 else ""
    return blame(error, kind.split(":")[0], blamed, kind, "; ".join(parts), *([ordinal] if ordinal else []))


def _value(kind: str, post: PostedCall) -> str:
    """What a rank brought to a disagreement."""
    if kind.startswith("shapes"):
        return f"{post.function} of {list(post.shape)}" + f" in pieces of {list(post.pieces)}" * bool(post.pieces)
    if kind.startswith("a list"):
        listed = f"a list of {len(post.pieces)} tensors, {list(post.pieces)} elements"
        return f"{post.function} of {listed if post.pieces else f'one tensor, {list(post.shape)}'}"
    if kind.startswith("memory"):
        return f"{post.function} with strides {list(post.strides)}" if post.strides else f"{post.function}, contiguous"
    if kind.startswith("dtypes"):
        return f"{post.function} of {post.dtype}"
    if kind.startswith("new_group"):
        return f"new_group({list(post.shape)})"
    return post.text


def _splits(calls: dict[int, PostedCall]) -> RankError | None:
    """The error of an all-to-all in which a rank sends what its receiver does not expect."""
    for sender in calls.values():
        for receiver in calls.values():
            to, since = sender.group.index(receiver.rank), receiver.group.index(sender.rank)
            if len(sender.splits) <= to or len(receiver.receives) <= since:
                continue
            sent, expected = sender.splits[to], receiver.receives[since]
            if sent != expected:
                width = max(sender.width, receiver.width)
                rows = f"{sent // width} row{'s' * (sent != width)}"
                what = f"rank {sender.rank} sends {rows} to rank {receiver.rank}, which expects {expected // width}"
                places = dict.fromkeys(map(str, (sender.place, receiver.place)))
                return blame(MismatchError, "splits disagree", receiver, what, f"({', '.join(places)})")
    return None
