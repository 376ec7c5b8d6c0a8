"""The floor under `bench_collectives.py`: what gloo's messages cost alone, with next to no Python around them.

One plan for each job (doubling, all at once, a binomial tree), on buffers that are there already, through the group's
own `send` and `recv`. Where even this does not reach a bar, only another plan could: less Python would not help. Small
tensors alone: large ones go in pieces, which costs less than such a floor.
"""

from collections.abc import Callable

import bench_collectives as collectives
import rows
import torch
import torch.distributed as dist
from rows import Row

SMALL = collectives.SIZES[:3]  # bytes
JOBS = {  # of so many ranks: collectives, and at which sizes
    2: {"all_reduce": SMALL},
    4: {"all_reduce": (1 << 18,), "all_to_all": SMALL, "broadcast": (1 << 18,)},
    8: {"all_reduce": (1 << 18,), "all_to_all": (*SMALL, 1 << 20), "broadcast": (1 << 18, 1 << 20)},
}


def measure(report: Callable[[Row], None]) -> None:
    """Two rows for each: our collective, and the floor."""
    for ranks, sizes in JOBS.items():
        jobs = [(collective, size) for collective, some in sizes.items() for size in some]
        for (collective, size), times in zip(jobs, collectives.several_starts(ranks, on_rank, jobs), strict=True):
            for whose in ("ours", "floor"):
                name = f"{collective}, {ranks} ranks, {collectives.amount(size)}, {whose}"
                report(rows.faster(name, times[whose], times["gloo"], "s", collectives.BARS[collective](size)))


def on_rank(jobs: list[collectives.Job]) -> list[collectives.Times]:
    """For each job, the seconds of each run on this rank: ours, gloo's and the floor, in turns."""
    group = rows.plain_gloo()
    found = []
    for collective, size in jobs:
        both = collectives.pairs(collective, size // 4, group)
        floor = FLOORS[collective](size // 4, group)
        found.append(collectives.in_turns({**both, "floor": floor}, size, group))
    return found


def all_reduce(numel: int, group: dist.ProcessGroup) -> Callable[[], object]:
    """Swap everything with a rank 1, 2, 4, ... away, and add."""
    neighbours = [group.rank() ^ distance for distance in (1, 2, 4) if distance < group.size()]
    x, buffers = torch.ones(numel), [torch.ones(numel) for _ in neighbours]

    def run() -> None:
        arrivals = [group.recv([buffer], other, 0) for buffer, other in zip(buffers, neighbours, strict=True)]
        for buffer, other, arrival in zip(buffers, neighbours, arrivals, strict=True):
            departure = group.send([x], other, 0)
            arrival.wait()
            departure.wait()
            x.add_(buffer)

    return run


def all_at_once(numel: int, group: dist.ProcessGroup) -> Callable[[], None]:
    """A chunk to every rank and a chunk from every rank."""
    rank, n = group.rank(), group.size()
    chunks, places = torch.ones(numel).chunk(n), torch.ones(numel).chunk(n)
    others = [*range(rank + 1, n), *range(rank)]

    def run() -> None:
        requests = [group.recv([places[other]], other, 0) for other in reversed(others)]
        requests += [group.send([chunks[other]], other, 0) for other in others]
        places[rank].copy_(chunks[rank])
        for request in requests:
            request.wait()

    return run


def broadcast(numel: int, group: dist.ProcessGroup) -> Callable[[], None]:
    """Down a binomial tree: rank 0b101 hears from 0b100, which hears from 0."""
    rank, n, x = group.rank(), group.size(), torch.ones(numel)
    parent, lowest = rank & (rank - 1), rank & -rank or n
    children = [rank + distance for distance in (4, 2, 1) if distance < lowest and rank + distance < n]

    def run() -> None:
        if rank:
            group.recv([x], parent, 0).wait()
        for child in children:
            group.send([x], child, 0).wait()

    return run


FLOORS = {"all_reduce": all_reduce, "all_to_all": all_at_once, "broadcast": broadcast}

if __name__ == "__main__":
    rows.main("floor", measure)
