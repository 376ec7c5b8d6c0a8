"""Prove of a program that no message waits forever where messages run one after the other, as NCCL's do.

To NCCL a message is a kernel on a stream. It ends when its other end has begun, and what was begun after it, on the
same communicator, waits until then. So a receive that is begun early can hold up a send for which the other rank waits.
In 1F1B two neighbours that share one communicator for both ways are soon lost: each has begun to receive from the
other, and what it would send comes after that.

Where each channel has a communicator of its own, one end only sends and the other only receives, in the same order.
That messages of different communicators run at once is assumed here. CUDA promises it only where their streams share no
hardware queue: `folded` says what becomes of it where they do.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence

from .passes import Channel, Program, Receive, Reduce, Send, Step
from .schedule import Action, Schedule
from .simulate import Result, needs
from .walk import Walk


def own(channel: Channel) -> Hashable:
    """A communicator for each channel."""
    return channel


def pair(channel: Channel) -> Hashable:
    """A communicator for each two ranks, as torch makes for single messages (no `device_id` given at the start)."""
    return min(channel), max(channel)


def shared(channel: Channel) -> Hashable:
    """One communicator for all, as torch takes where it was made at the start (`device_id` given)."""
    return ()


def stuck(program: Program, communicator: Callable[[Channel], Hashable] = own) -> str:
    """What waits forever, in words; nothing if every rank comes to the end.

    A rank continues while what it computes with is here; it waits for no send. On each communicator its messages begin
    in the order of the program, each when the one before it has finished.

    Args:
        program: whose sends and receives are in place.
        communicator: which messages share one.
    """
    ranks = [Reached(number, program.schedule, communicator) for number in range(len(program.lines))]
    walk, moved = Walk(program.lines), True
    while moved:
        walk.go(lambda rank, step: ranks[rank].can(step), lambda rank, step: ranks[rank].does(step))
        moved = sum([_ended(rank, ranks) for rank in ranks])
    left = [f"{queue[0]} on rank {rank.number} never ends" for rank in ranks for queue in rank.queues.values() if queue]
    return "; ".join(walk.waiting or left)


def _ended(rank: "Reached", ranks: Sequence["Reached"]) -> int:
    """Let those messages of a rank end whose other end has begun, too. Returns how many there were."""
    count = 0
    for name, queue in rank.queues.items():
        while queue and (other := ranks[other_end(queue[0])]).begins(name, queue[0], rank.number):
            received = queue.popleft().result
            other.queues[name].popleft()
            rank.here.add(received)
            other.here.add(received)
            count += 1
    return count


class Reached:
    """What has come to a rank, and which of its messages are not through."""

    def __init__(self, number: int, schedule: Schedule, communicator: Callable[[Channel], Hashable]) -> None:
        self.number, self.schedule, self.communicator = number, schedule, communicator
        self.queues: defaultdict[Hashable, deque[Send | Receive]] = defaultdict(deque)
        self.here: set[Result] = set()

    def can(self, step: Step) -> bool:
        """Whether what a step computes with is here."""
        action = step.action if isinstance(step, Reduce) else step
        needed = needs(self.schedule, action) if isinstance(action, Action) else None
        return needed is None or self.schedule.placement[needed.stage] == self.number or needed in self.here

    def does(self, step: Step) -> None:
        """A message begins."""
        if isinstance(step, Send):
            self.queues[self.communicator(Channel(self.number, step.to))].append(step)
        elif isinstance(step, Receive):
            self.queues[self.communicator(Channel(step.source, self.number))].append(step)

    def begins(self, name: Hashable, message: Send | Receive, source: int) -> bool:
        """Whether the other end of a message is the first in this rank's queue."""
        queue = self.queues.get(name)
        return bool(queue) and queue[0].result == message.result and other_end(queue[0]) == source


def other_end(message: Send | Receive) -> int:
    """The rank that has the other end of a message."""
    return message.to if isinstance(message, Send) else message.source
