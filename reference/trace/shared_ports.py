"""Ports that several messages use at the same time: the one link of a node, as TCP shares it among its connections.

- All messages that are under way through a port share it evenly, each as fast as the fuller of its two ports lets it.
- Messages from one rank to the same other one are one connection: they follow each other.
- A token bucket lets pass at once what it holds, and fills while its port is idle.
- The sender of a message need not wait any longer when its buffer holds all that is left of it.

Units of time are those of `replay`, and what is left of a message is the time that it would take alone.
"""

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .replay import Flight

FULL = 1 << 200  # tokens of a bucket before the first message: more than any holds


class SharedPorts:
    """The messages that are under way through shared ports."""

    def __init__(self) -> None:
        self.left: dict[Flight, int] = {}
        self._lines: dict[tuple[int, int], deque[Flight]] = defaultdict(deque)  # the one that flows, and those behind
        self._users: dict[tuple, int] = defaultdict(int)  # of each port
        self._buckets: dict[tuple, tuple[int, int]] = defaultdict(lambda: (FULL, 0))  # port -> tokens, and since when

    def add(self, flight: "Flight", now: int) -> None:
        """A message may start, as soon as those before it on its connection are gone."""
        line = self._lines[flight.src, flight.dst]
        line.append(flight)
        if len(line) == 1:
            self._enter(flight, now)

    def next(self, now: int) -> tuple[int | None, list["Flight"]]:
        """When a message will next have left its ports or its sender's hands, and which: all that do so at once."""
        moments = {
            flight: now + (left - self._buffered(flight, left)) * self._slower(flight)
            for flight, left in self.left.items()
        }
        moment = min(moments.values(), default=None)
        return moment, [flight for flight, its in moments.items() if its == moment]

    def advance(self, time: int) -> None:
        """Let so much time pass, in which none leaves."""
        for flight in self.left:
            self.left[flight] -= time // self._slower(flight)

    def remove(self, flight: "Flight", now: int) -> None:
        """A message has passed its ports: the next on its connection may enter them."""
        del self.left[flight]
        for port in flight.price.ports:
            self._users[port] -= 1
            self._buckets[port] = self._buckets[port][0], now
        line = self._lines[flight.src, flight.dst]
        line.popleft()
        if line:
            self._enter(line[0], now)

    def _enter(self, flight: "Flight", now: int) -> None:
        flight.begin, price = now, flight.price
        for port in price.ports:
            tokens, since = self._buckets[port]
            self._buckets[port] = min(price.burst, tokens if self._users[port] else tokens + now - since), now
        at_once = min(price.transmission, *(self._buckets[port][0] for port in price.ports))
        for port in price.ports:
            self._buckets[port] = self._buckets[port][0] - at_once, now
            self._users[port] += 1
        self.left[flight] = price.transmission - at_once

    def _slower(self, flight: "Flight") -> int:
        """How many times longer than alone it takes."""
        return max(self._users[port] for port in flight.price.ports)

    def _buffered(self, flight: "Flight", left: int) -> int:
        """How much is left when its sender is released; 0 where that has been."""
        return 0 if flight.buffered else min(flight.price.buffer, left)
