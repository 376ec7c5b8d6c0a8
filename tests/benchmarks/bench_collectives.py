"""Hand-made collectives against gloo's own, on 2, 4 and 8 ranks, from 1 KB to 64 MB.

Both run on the same gloo group, in turns; a run takes as long as on its slowest rank; medians. Small tensors go several
times in a run: see `rows.interleaved`; and ranks are started several times: see `rows.joined`. `ratio` is gloo's time
over ours.
"""

from collections.abc import Callable
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row

from reference.cluster import Cluster
from reference.collectives.fast import select

RANKS = (2, 4, 8)
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)  # bytes, of the larger tensor
BARS: dict[str, Callable[[int], float]] = {  # size in bytes -> ratio
    "all_reduce": lambda size: 2.0 if size <= 1 << 18 else 0.9,
    "reduce_scatter": lambda size: 1.5,
    "all_gather": lambda size: 1.1,
    "all_to_all": lambda size: 0.9,
    "broadcast": lambda size: 1.0,
}

Job = tuple[str, int]
"""A collective, and the bytes of its larger tensor."""
Times = dict[str, list[float]]
"""Seconds of runs, by whose they are."""


def measure(report: Callable[[Row], None]) -> None:
    """Every collective of `select`, on every number of ranks, at every size."""
    jobs = [(collective, size) for collective in BARS for size in SIZES]
    for ranks in RANKS:
        for (collective, size), times in zip(jobs, several_starts(ranks, on_rank, jobs), strict=True):
            name = f"{collective}, {ranks} ranks, {amount(size)}"
            report(rows.faster(name, times["ours"], times["gloo"], "s", BARS[collective](size)))


def several_starts(ranks: int, on_rank: Callable[[list[Job]], list[Times]], jobs: list[Job]) -> list[dict[str, float]]:
    """The medians of each job, over all runs on ranks that are started anew several times."""
    found: list[list[Times]] = []
    for _ in range(rows.STARTS):
        with Cluster(ranks) as cluster:
            found.append([rows.of_ranks(of_job) for of_job in zip(*cluster.run(on_rank, jobs), strict=True)])
    return [rows.medians(rows.joined(starts)) for starts in zip(*found, strict=True)]


def on_rank(jobs: list[Job]) -> list[Times]:
    """For each job, the seconds of each run of both on this rank."""
    group = rows.plain_gloo()
    return [in_turns(pairs(collective, size // 4, group), size, group) for collective, size in jobs]


def in_turns(functions: dict[str, Callable[[], object]], size: int, group: dist.ProcessGroup) -> Times:
    """The seconds of each run of each function, which all move tensors of `size` bytes."""
    calls, repeats = max(1, min(16, (1 << 22) // size)), max(11, min(27, (1 << 28) // size))
    return rows.interleaved(functions, repeats, partial(dist.barrier, group), calls)


def pairs(collective: str, numel: int, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """Both ways to do the same to the same float32 tensors."""
    n = dist.get_world_size(group)
    whole, other, shard = torch.ones(numel), torch.ones(numel), torch.ones(numel // n)
    ours, gloo = {
        "all_reduce": (partial(select.all_reduce, whole, group), partial(dist.all_reduce, whole, group=group)),
        "reduce_scatter": (
            partial(select.reduce_scatter, whole, shard, group),
            partial(dist.reduce_scatter_single, shard, whole, group=group),
        ),
        "all_gather": (
            partial(select.all_gather, shard, whole, group),
            partial(dist.all_gather_single, whole, shard, group=group),
        ),
        "all_to_all": (
            partial(select.all_to_all, whole, other, group),
            partial(dist.all_to_all_single, other, whole, group=group),
        ),
        "broadcast": (partial(select.broadcast, whole, 0, group), partial(dist.broadcast, whole, 0, group=group)),
    }[collective]
    return {"ours": ours, "gloo": gloo}


def amount(size: int) -> str:
    """Bytes, for people."""
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


if __name__ == "__main__":
    rows.main("collectives", measure)
