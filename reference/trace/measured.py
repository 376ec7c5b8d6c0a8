"""A timeline of what was measured: the clocks of a real run, so no two runs are alike.

While a rank is held up by a call, it waits until the last of the others has made that call too; from then on it
communicates. That much can be known from outside. What a native collective says inside cannot, so its messages are not
drawn; nor can what happens during a rank's own work, between a call and the wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .events import Event
from .native import Lowered, describe
from .timeline import Span, Timeline, Transfer, horizon, lane

if TYPE_CHECKING:
    from .trace import Message

Key = tuple[int, int]  # rank and tick: which event


def timeline(
    calls: Sequence[Sequence[Lowered]], messages: Sequence[Message], unmatched: Iterable[Event], duration: float
) -> Timeline:
    """The measured timeline of the calls of all ranks; calls in `unmatched` that never returned last to the end.

    Until its last tick a rank has continued all the same: from then on it is held up.
    """
    stuck = {_key(event) for event in unmatched if event.completed is None}
    end = horizon(duration, stuck=bool(stuck))
    complete = _when_all_were_there(calls, messages)
    spans = [span for rank, own in enumerate(calls) for span in _lane(rank, own, complete, stuck, end)]
    transfers = [
        Transfer(message.src, message.dst, message.send.begin, message.recv.end, message.bytes)
        for message in messages
        if not message.algorithm and message.recv.end is not None
    ]
    transfers.sort(key=lambda transfer: (transfer.begin, transfer.src, transfer.dst))
    return Timeline(len(calls), tuple(spans), tuple(transfers), end, "measured")


def _key(event: Event) -> Key:
    return event.rank, event.posted


def _when_all_were_there(calls: Sequence[Sequence[Lowered]], messages: Sequence[Message]) -> dict[Key, float]:
    """For each call: the moment at which the last of those who take part had posted it."""
    complete = {_key(call.event): max(e.begin for e in call.together) for own in calls for call in own}
    for message in messages:
        if not message.algorithm:
            complete[_key(message.send)] = complete[_key(message.recv)] = max(message.send.begin, message.recv.begin)
    return complete


def _lane(rank: int, own: Sequence[Lowered], complete: dict[Key, float], stuck: set[Key], end: float) -> list[Span]:
    """A rank is held up by a call at most since its tick before the wait returned: until then it did something else."""
    returns = [call for call in own if call.event.completed is not None]
    ticks = [(call.event.posted, call.event.begin) for call in own]
    ticks += [(call.event.completed, call.event.end) for call in returns]
    ticks.sort()
    before = {tick: moment for (_, moment), (tick, _) in pairwise(ticks)}
    moving, held = [], []
    for call in returns:
        event, words = call.event, describe(call)
        since = before[event.completed]
        moving.append((min(max(complete[_key(event)], since), event.end), event.end, words))
        held.append((since, event.end, words))
    waits_for_ever = [(ticks[-1][1], end, describe(call)) for call in own if _key(call.event) in stuck]
    return lane(rank, moving, held, waits_for_ever)
