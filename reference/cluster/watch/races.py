"""Receives from any rank, and whether another message could have come first.

Two messages race for a receive unless one of them could only be sent after the other had been received. "After" is
Lamport's happened-before (1978), computed with vector clocks (Fidge 1988, Mattern 1989) over the calls of all ranks.
"""

from collections import defaultdict

from ..errors import RaceError, RankError
from .posted_calls import PostedCall, blame, ranks_text

Clock = tuple[int, ...]


class Races:
    """The receives from any rank of one run."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._served: dict[tuple[str, int, int], set[PostedCall]] = defaultdict(set)  # (group, rank, tag)
        self._clocks: dict[PostedCall, Clock] = {}

    def served(self, recv: PostedCall) -> None:
        """A receive has met a message."""
        self._served[recv.group_name, recv.rank, recv.tag].add(recv)

    def check(self) -> RankError | None:
        """The error of a receive that two messages could have reached first, once the run is over."""
        for receives in self._served.values():
            if all(recv.peer is not None for recv in receives):
                continue
            in_order = sorted((recv for recv in receives if recv.matched), key=lambda recv: recv.number)
            for place, taken in enumerate(in_order):
                anybody = taken.peer is None and not taken.source_used
                if anybody and (error := self._rivalry(taken, in_order[place + 1 :])):
                    return error
        return None

    def _rivalry(self, taken: PostedCall, later: list[PostedCall]) -> RankError | None:
        """The error of a receive from any rank that another rank's message could have reached first.

        Of each other rank, that could only be the first of its messages that is still to come, whatever takes it: a
        receive that names its source waits in vain, where its message is gone.
        """
        first = taken.partners[0]
        firsts: dict[int, PostedCall] = {}
        for recv in later:
            firsts.setdefault(recv.partners[0].rank, recv)
        rivals = {rank: recv for rank, recv in firsts.items() if rank != first.rank}
        rivals = {rank: recv for rank, recv in rivals.items() if not self._knew(recv.partners[0], taken)}
        rivals = {rank: recv for rank, recv in rivals.items() if not recv.source_used}
        if not rivals:
            return None
        senders = ranks_text({first.rank, *rivals})
        what = f"the result depends on arrival order: {senders} send to a receive from any rank"
        starved = next((recv for recv in rivals.values() if recv.peer is not None), None)
        details = [f"{starved.text} at {starved.place} waits in vain where its message is first"] if starved else []
        fix = "name the source: recv(src=...), or give each sender its own tag"
        return blame(RaceError, "race", taken, what, *details, fix)

    def _knew(self, later: PostedCall, taken: PostedCall) -> bool:
        """True where the sender of `later` knew that `taken` was over."""
        return self._clock(later)[taken.rank] > self._clock(taken)[taken.rank]

    def _clock(self, post: PostedCall) -> Clock:
        """How many calls of each rank came before `post`, itself included, as far as its rank could know."""
        pending, begun = [post], set()
        while pending:  # a recursion on a stack of our own: programs are longer than Python's
            now = pending[-1]
            if now in self._clocks:
                pending.pop()
                continue
            begun.add(now)
            known = [] if now.previous is None else [now.previous]
            known += [partner for waited in now.waited for partner in waited.partners if partner is not now]
            if missing := [other for other in known if other not in self._clocks and other not in begun]:
                pending += missing
                continue
            clocks = [self._clocks[other] for other in known if other in self._clocks]  # all, unless a guess was wrong
            clock = [max(ticks) for ticks in zip([0] * self._world_size, *clocks, strict=True)]
            clock[now.rank] += 1
            self._clocks[now] = tuple(clock)
            pending.pop()
        return self._clocks[post]
