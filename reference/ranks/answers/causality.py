"""What happened before what? On many ranks that is a question about messages, not about clocks.

A moment a on one rank happened before a moment b on another if a chain of messages leads from a to b: sent after a,
received before b, each one sent after the one before it was received. Where no chain leads either way, the two happen
in whatever order the machine likes today.

Lamport 1978, "Time, clocks, and the ordering of events in a distributed system".
"""

from math import inf
from typing import NamedTuple

from reference.trace import Trace


class Moment(NamedTuple):
    """Between two calls of a rank: after those with a tick below `tick` (see `reference.trace.events`)."""

    rank: int
    tick: int


def happened_before(trace: Trace, first: Moment, then: Moment) -> bool:
    """True if every run of the program must come through `first` before it comes through `then`."""
    return first != then and heard(trace, first)[then.rank] <= then.tick


def heard(trace: Trace, moment: Moment) -> list[float]:
    """By rank, the tick from which on it can know that `moment` has passed; inf where no message tells it."""
    since = [inf] * trace.world_size
    since[moment.rank] = moment.tick
    inside = set()  # (rank, posted) of collectives that have heard and are still inside
    for message in trace.messages:  # by step: news travels on only after it came
        send, recv = message.send, message.recv
        if send.posted < since[send.rank] and (send.rank, send.posted) not in inside:
            continue
        if message.algorithm:
            inside.add((recv.rank, recv.posted))
        if recv.completed is not None:
            since[recv.rank] = min(since[recv.rank], recv.completed + 1)
    return since
