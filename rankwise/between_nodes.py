"""How fast the links between nodes are: each pair of nodes is measured in both directions, and the slow node is named.

One rank of each node takes part. In each round of a tournament every node is in one pair at most, so that no pair is in
another one's way; after n-1 rounds (n of them for an odd number) each has met each. The fastest of a node's pairs says
what its own link carries: so of two nodes that have but each other, none can be blamed.
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.node_order import Whereabouts, names_of

PINGS = 20
FIRST, LARGEST, FACTOR = 1 << 16, 1 << 28, 4  # bytes of messages: four times more, until one takes long enough
LONG_ENOUGH = 0.1  # seconds: latency, and what a token bucket holds, are a small part of it
SLOW = 0.5  # of the median rate: a link below is named
LATE = 5.0  # times the median latency: likewise


@dataclass(frozen=True)
class Links:
    """What was measured. `rate[a][b]` is bytes per second from a to b, `latency[a][b]` seconds one way; a is not b."""

    names: tuple[str, ...]
    rate: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each two nodes once."""
        nodes = range(len(self.names))
        return ((a, b) for a in nodes for b in nodes if a < b)

    def slow(self) -> Iterator[str]:
        """What is slow, a sentence each: first nodes all of whose links are, then links between two others."""
        nodes = range(len(self.names))
        sends = [max(self.rate[a][b] for b in nodes if b != a) for a in nodes]
        receives = [max(self.rate[b][a] for b in nodes if b != a) for a in nodes]
        answers = [min(self.latency[a][b] for b in nodes if b != a) for a in nodes]
        usual, quick = statistics.median(sends + receives), statistics.median(answers)
        bad = set()
        for a in nodes:
            rate = min(sends[a], receives[a])
            if rate < SLOW * usual:
                bad.add(a)
                yield f"{self.names[a]} is slow: {rate_text(rate)} at best, and the median node has {rate_text(usual)}"
            if answers[a] > LATE * quick:
                bad.add(a)
                late = f"{1e3 * answers[a]:.2g} ms, and the median node takes {1e3 * quick:.2g} ms"
                yield f"{self.names[a]} answers late: {late}"
        for a in nodes:
            for b in nodes:
                least = min(sends[a], receives[b]) if a != b else 0.0
                if not bad & {a, b} and a != b and self.rate[a][b] < SLOW * least:
                    rates = f"{rate_text(self.rate[a][b])}, and with other nodes both reach {rate_text(least)}"
                    yield f"the way from {self.names[a]} to {self.names[b]} is slow: {rates}"


def rate_text(rate: float) -> str:
    """Bytes per second, for people."""
    return f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def nodes_of_the_job() -> int:
    """On how many nodes torchrun has started this job; 0 for a process that it has not started."""
    return int(os.environ.get("GROUP_WORLD_SIZE", 0))


def measured_links() -> Links | None:
    """Called by each rank of a job with an initialised group: the links between its nodes, known to all first ranks.

    Returns:
        None on ranks that are not the first of their node.
    """
    places: list[Whereabouts] = [Whereabouts.here()] * dist.get_world_size()
    dist.all_gather_object(places, places[0])
    firsts = [places.index(place) for place in dict.fromkeys(places)]
    group = dist.new_group(firsts)
    if dist.get_rank() not in firsts:
        return None
    all_names = names_of(places)
    rows: list[tuple[list[float], list[float]]] = [([], [])] * len(firsts)
    dist.all_gather_object(rows, one_node(group), group=group)
    rates, latencies = zip(*rows, strict=True)
    return Links(tuple(all_names[rank] for rank in firsts), tuple(map(tuple, rates)), tuple(map(tuple, latencies)))


def one_node(group: ProcessGroup) -> tuple[list[float], list[float]]:
    """From this node to each: bytes per second, and seconds one way."""
    me, n = group.rank(), group.size()
    rates, latencies = [0.0] * n, [0.0] * n
    for pairs in tournament(n):
        for pair in pairs:
            if me in pair:
                (other,) = set(pair) - {me}
                for sender in pair:
                    latencies[other] = ping(other, me == sender, group) or latencies[other]
                    rates[other] = stream(other, me == sender, latencies[other], group) or rates[other]
    return rates, latencies


def tournament(n: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds in which each of n players meets another one, or waits; each two meet once. One stays, others turn."""
    players: list[int | None] = [*range(n), *([None] if n % 2 else [])]
    for _ in range(len(players) - 1):
        half = len(players) // 2
        meetings = zip(players[:half], reversed(players[half:]), strict=True)
        yield [(a, b) for a, b in meetings if a is not None and b is not None]
        players = [players[0], players[-1], *players[1:-1]]


def ping(other: int, asks: bool, group: ProcessGroup) -> float:
    """The median seconds of an empty message one way, on the rank that asks; 0 on the one that answers."""
    x, times = torch.zeros(1), []
    for _ in range(PINGS):
        begin = time.perf_counter()
        for sends in (asks, not asks):
            (group.send if sends else group.recv)([x], other, 0).wait()
        times.append((time.perf_counter() - begin) / 2)
    return statistics.median(times) if asks else 0.0


def stream(other: int, sends: bool, latency: float, group: ProcessGroup) -> float:
    """Bytes per second of a message that takes long enough, on the rank that sends it; 0 on the one that receives."""
    size, answer, rate = torch.tensor([FIRST]), torch.zeros(1), 0.0
    while True:
        (group.send if sends else group.recv)([size], other, 0).wait()
        if not int(size):
            return rate if sends else 0.0
        x = torch.zeros(int(size), dtype=torch.uint8)
        begin = time.perf_counter()
        (group.send if sends else group.recv)([x], other, 0).wait()
        (group.recv if sends else group.send)([answer], other, 0).wait()
        seconds = max(time.perf_counter() - begin - 2 * latency, 1e-9)
        rate = int(size) / seconds
        more = seconds < LONG_ENOUGH and int(size) < LARGEST
        size = torch.tensor([int(size) * FACTOR if more else 0])
