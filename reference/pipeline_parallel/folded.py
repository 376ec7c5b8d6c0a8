"""The proof of `ordering` once more, where the streams of a GPU share hardware queues.

`ordering.stuck` takes for granted that messages of different communicators run at once. On a GPU each communicator has
a stream, and streams are fed through a few hardware queues: what stands in a queue waits for what stands before it, of
whatever stream. How streams are dealt out to queues is written nowhere; here they are dealt out in turn, in the order
in which `pipeline_parallel.channels.channels_of` makes them. Two views of what a message does at the head of its queue:

    STARTS   it leaves the queue when it starts; the next of its own stream stands there until it has ended. This is
             nearer to what NVIDIA writes of Hyper-Q
    HOLDS    it stands there until it has ended

Queues that a GPU must have, with two micro-batches for each rank, and two stages on it where that is left open:

| order                                  | STARTS, 2 ranks | STARTS, 4 or 8 | HOLDS, 2 ranks | HOLDS, 4 or 8 |
|----------------------------------------|-----------------|----------------|----------------|---------------|
| gpipe, 1f1b, zb-h1, zb-h2, v-half      | 1               | 1              | 2              | 4             |
| interleaved, interleaved-even          | 2               | 1              | 2              | 4             |
| v-min                                  | 1               | 1, 4           | 2              | 4             |
| breadth-first, zb-v, 1f1b-v, dualpipev | 2               | 4              | 2              | 4             |

A queue for each channel of the busiest rank is always enough, and `reference.on_gpus` asks for no less. Where ranks
hang although every message has its other end, look at the number of queues first.
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from .ordering import Reached, other_end
from .passes import Channel, Program, Receive, Send, channels
from .schedule import Schedule
from .walk import Walk


class QueueHead(Enum):
    """When a message leaves the head of its queue."""

    STARTS = "starts"
    HOLDS = "holds"


def stuck(program: Program, queues: int, head: QueueHead) -> str:
    """What waits forever, in words; nothing if every rank comes to the end.

    Args:
        program: whose sends and receives are in place.
        queues: of each GPU, 1 or more.
        head: when messages leave them.
    """
    ways = list(channels(program.schedule))
    gpus = [
        _Gpu(rank, program.schedule, [way for way in ways if rank in way], queues, head)
        for rank in range(len(program.lines))
    ]
    walk, moved = Walk(program.lines), True
    while moved:
        walk.go(lambda rank, step: gpus[rank].can(step), lambda rank, step: gpus[rank].does(step))
        for gpu in gpus:
            gpu.start()
        moved = sum(gpu.end_with(gpus) for gpu in gpus)
    left = [f"{message} on rank {gpu.number} never ends" for gpu in gpus for message in gpu.running.values()]
    return "; ".join(walk.waiting or left)


def busiest(schedule: Schedule) -> int:
    """The number of channels of the rank that has the most."""
    ends = Counter(rank for channel in channels(schedule) for rank in channel)
    return max(ends.values(), default=0)


class _Gpu(Reached):
    """A rank whose channels, one after the other, are dealt out to queues."""

    def __init__(self, number: int, schedule: Schedule, ways: Sequence[Channel], queues: int, head: QueueHead) -> None:
        super().__init__(number, schedule, lambda channel: ways.index(channel) % queues)
        self.head = head
        self.running: dict[Channel, Send | Receive] = {}

    def start(self) -> None:
        """Let all messages start that can."""
        for queue in self.queues.values():
            while queue and self.way(queue[0]) not in self.running:
                self.running[self.way(queue[0])] = queue[0]
                if self.head is QueueHead.STARTS:
                    queue.popleft()

    def end_with(self, gpus: Sequence["_Gpu"]) -> int:
        """End those messages that run at both ends; how many there were."""
        ended = [way for way, message in self.running.items() if self.running_at(gpus[other_end(message)], way)]
        for way in ended:
            other = gpus[other_end(self.running[way])]
            for gpu in (self, other):
                gpu.end(way)
        return len(ended)

    def running_at(self, other: "_Gpu", way: Channel) -> bool:
        """Whether what runs here on a channel runs there, too."""
        return way in other.running and other.running[way].result == self.running[way].result

    def end(self, way: Channel) -> None:
        """A message has arrived."""
        message = self.running.pop(way)
        self.here.add(message.result)
        if self.head is QueueHead.HOLDS:
            self.queues[self.communicator(way)].popleft()

    def way(self, message: Send | Receive) -> Channel:
        """The channel of a message."""
        ends = (self.number, message.to) if isinstance(message, Send) else (message.source, self.number)
        return Channel(*ends)
