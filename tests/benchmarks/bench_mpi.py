"""MPI against gloo's collectives and ours, by size, on 2 and 4 ranks that mpiexec has started.

All three run in the same processes, in turns; a run takes as long as on its slowest rank; medians. `ratio` is gloo's
time over MPI's, or over ours. Ranks of MPI look for messages without a pause: with more ranks than cores they take time
from those that they wait for. It takes mpi4py and mpich, which `make setup` installs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import rows
import torch
import torch.distributed as dist
from rows import Row

from reference.collectives.fast import select
from reference.networks.lab.backends import MPIEXEC, joined

RANKS = (2, 4)
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes, of the larger tensor
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")

Times = dict[str, float]
"""Seconds of a call, by who makes it."""


def measure(report: Callable[[Row], None]) -> None:
    """Every collective at every size."""
    for ranks in RANKS:
        for name, times in started(ranks, SIZES):
            report(rows.faster(f"MPI, {name}", times["mpi"], times["gloo"], "s"))
            report(rows.faster(f"ours, {name}", times["ours"], times["gloo"], "s"))


def started(ranks: int, sizes: tuple[int, ...]) -> list[tuple[str, Times]]:
    """What ranks of mpiexec have measured.

    Raises:
        SystemExit: if they end with an error.
    """
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, __file__, "on a rank", *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
    return [tuple(row) for row in json.loads(done.stdout.strip().splitlines()[-1])]


def on_rank(sizes: list[int]) -> None:
    """Measure, and print on rank 0 what the slowest rank took."""
    torch.set_num_threads(1)
    over_mpi, gloo = joined(), dist.group.WORLD
    found = []
    for collective in COLLECTIVES:
        for size in sizes:
            calls = in_three_ways(collective, size // 4, over_mpi, gloo)
            repeats = max(7, min(27, (1 << 26) // size))
            times = rows.interleaved(calls, repeats, partial(dist.barrier, gloo), max(1, min(16, (1 << 22) // size)))
            everybody = [None] * gloo.size()
            dist.all_gather_object(everybody, times)
            name = f"{collective}, {gloo.size()} ranks, {size >> 10} KB"
            found.append((name, rows.medians(rows.of_ranks(everybody))))
    if gloo.rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def in_three_ways(
    collective: str, numel: int, over_mpi: dist.ProcessGroup, gloo: dist.ProcessGroup
) -> dict[str, Callable[[], object]]:
    """A collective over MPI, by gloo, and by hand over gloo; all see that they agree."""
    whole, other, shard = torch.ones(numel), torch.ones(numel), torch.ones(numel // gloo.size())
    native, by_hand = {
        "all_reduce": (lambda group: dist.all_reduce(whole, dist.ReduceOp.MAX, group), select.all_reduce),
        "reduce_scatter": (lambda group: dist.reduce_scatter_single(shard, whole, group=group), select.reduce_scatter),
        "all_gather": (lambda group: dist.all_gather_single(whole, shard, group=group), select.all_gather),
        "all_to_all": (lambda group: dist.all_to_all_single(other, whole, group=group), select.all_to_all),
        "broadcast": (lambda group: dist.broadcast(whole, 0, group), select.broadcast),
    }[collective]
    given = {
        "all_reduce": (whole, gloo, dist.ReduceOp.MAX),
        "reduce_scatter": (whole, shard, gloo),
        "all_gather": (shard, whole, gloo),
        "all_to_all": (whole, other, gloo),
        "broadcast": (whole, 0, gloo),
    }[collective]
    results = {}
    ways = {"mpi": partial(native, over_mpi), "gloo": partial(native, gloo), "ours": partial(by_hand, *given)}
    for name, call in ways.items():
        whole.copy_(torch.arange(numel) % 8 + gloo.rank())
        shard.fill_(gloo.rank())
        call()
        results[name] = torch.cat([whole, other, shard])
    if not all(torch.equal(result, results["gloo"]) for result in results.values()):
        raise SystemExit(f"{collective} has other results over MPI than over gloo")
    return ways


if __name__ == "__main__":
    if sys.argv[1:2] == ["on a rank"]:
        on_rank([int(size) for size in sys.argv[2:]])
    else:
        rows.main("mpi", measure)
