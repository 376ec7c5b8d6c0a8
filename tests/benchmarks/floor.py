"""The floor under `collectives.py`: what gloo's messages cost alone, with next to no Python around them.

One plan for each job (doubling, all at once, a binomial tree), on buffers that are there already, through the group's
own `send` and `recv`. A large all-reduce adds nothing up here: its floor is to swap all chunks twice. Where even this
does not reach a bar, only another plan could: less Python would not help.
"""

from collections.abc import Callable

import collectives
import rows
import torch
import torch.distributed as dist
from rows import Row

from reference.cluster import Cluster
from reference.collectives import best

LATENCY, BANDWIDTH = collectives.SIZES[:3], collectives.SIZES[4:]  # bytes
WHERE = {  # collective, ranks: sizes
    ("all_reduce", 2): (*LATENCY, *BANDWIDTH),
    ("all_reduce", 4): (1 << 18, *BANDWIDTH),
    ("all_reduce", 8): (1 << 18, *BANDWIDTH),
    ("all_to_all", 4): LATENCY,
    ("all_to_all", 8): (*LATENCY, 1 << 20),
    ("broadcast", 2): BANDWIDTH,
    ("broadcast", 4): (1 << 18, *BANDWIDTH),
    ("broadcast", 8): (1 << 18, 1 << 20, *BANDWIDTH),
}


def measure(report: Callable[[Row], None]) -> None:
    """Two rows for each: our collective, and the floor."""
    for (collective, ranks), sizes in WHERE.items():
        with Cluster(ranks) as cluster:
            for size, *results in zip(sizes, *cluster.run(on_rank, collective, sizes), strict=True):
                times, bar = rows.medians(rows.of_ranks(results)), collectives.BARS[collective](size)
                for ours in ("ours", "floor"):
                    name = f"{collective}, {ranks} ranks, {collectives.amount(size)}, {ours}"
                    report(rows.faster(name, times[ours], times["gloo"], "s", bar))


def on_rank(collective: str, sizes: tuple[int, ...]) -> list[dict[str, list[float]]]:
    """For each size, the seconds of each run on this rank: ours, gloo's and the floor, in turns."""
    group = rows.plain_gloo()
    found = []
    for size in sizes:
        both = collectives.pairs(collective, size // 4, group)
        floor = FLOORS[collective](size // 4, group)
        found.append(collectives.in_turns({**both, "floor": floor}, size, group))
    return found


def all_reduce(numel: int, group: dist.ProcessGroup) -> Callable[[], object]:
    """Swap everything with a rank 1, 2, 4, ... away, and add; from `best.LARGE` on, swap chunks with all, and again."""
    if numel * torch.float32.itemsize >= best.LARGE:
        halves = all_at_once(numel, group), all_at_once(numel, group)
        return lambda: [half() for half in halves]
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
    """A chunk to everybody and a chunk from everybody."""
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
