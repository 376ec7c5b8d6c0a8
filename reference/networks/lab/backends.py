"""All-reduce by MPI, by gloo and by hand, on one machine: seconds by size.

    by_backend(ranks=2)["gloo"]         [(1024, 0.00012), (4096, 0.00013), ...]

All three run in the same processes, in turns; a call takes as long as on its slowest rank; medians over rounds. Ranks
of MPI are started by `mpiexec`. Where mpi4py and mpich are not installed (`pip install mpi4py mpich`), torchrun starts
the ranks, and MPI is left out. `rankwise bench mpi` compares five collectives so, on 2 and on 4 ranks.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives import mpi
from reference.collectives.fast import select

SIZES = tuple(1 << k for k in range(10, 25, 2))
"""Bytes: 1 KB to 17 MB."""
ROUNDS = 15
MPIEXEC = Path(sys.executable).parent / "mpiexec"

Points = list[tuple[int, float]]
"""Bytes, and seconds."""


def by_backend(ranks: int = 2, sizes: Sequence[int] = SIZES) -> dict[str, Points]:
    """Measure, in new processes.

    Args:
        ranks: how many processes share the sum.
        sizes: bytes of a float32 tensor.

    Returns:
        By what carries it ("MPI", "gloo", "by hand"), the bytes of each tensor and the seconds of an all-reduce.

    Raises:
        RuntimeError: what the ranks said, if they fail.
    """
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    if importlib.util.find_spec("mpi4py") and MPIEXEC.exists():
        start = [str(MPIEXEC), "-n", str(ranks), sys.executable]
    command = [*start, "-m", __name__, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr + done.stdout)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: [(size, seconds) for size, seconds in points] for name, points in found.items()}


def on_rank(sizes: Sequence[int]) -> None:
    """Measure on this rank. Rank 0 prints what `by_backend` returns."""
    ways = ways_to_reduce()
    found: dict[str, Points] = {name: [] for name in ways}
    for size in sizes:
        require_agreement(ways.values(), size // 4)
        x = torch.ones(size // 4)
        rounds = torch.tensor([[seconds(way, x) for way in ways.values()] for _ in range(ROUNDS)])
        dist.all_reduce(rounds, dist.ReduceOp.MAX)  # the slowest rank's
        for name, column in zip(ways, rounds.T.tolist(), strict=True):
            found[name].append((size, median(column)))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def joined() -> dist.ProcessGroup | None:
    """Join the others over gloo. Returns a group of all of them over MPI, where mpiexec has started them."""
    if not mpi.is_started():
        dist.init_process_group("gloo")
        return None
    mpi.register()
    dist.init_process_group("gloo", store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())
    return dist.new_group(backend=mpi.NAME)


def ways_to_reduce() -> dict[str, Callable[[Tensor], object]]:
    """The ways by which ranks that have joined take the largest of all ranks' numbers, in place."""
    over_mpi = joined()
    ways: dict[str, Callable[[Tensor], object]] = {}
    if over_mpi is not None:
        ways["MPI"] = lambda x: dist.all_reduce(x, dist.ReduceOp.MAX, over_mpi)
    ways["gloo"] = lambda x: dist.all_reduce(x, dist.ReduceOp.MAX)
    ways["by hand"] = lambda x: select.all_reduce(x, dist.group.WORLD, dist.ReduceOp.MAX)
    return ways


def require_agreement(ways: Iterable[Callable[[Tensor], object]], numel: int) -> None:
    """Raises RuntimeError where a way gives other numbers than the maximum of all ranks'."""
    of_rank = torch.arange(numel) % 8.0
    for way in ways:
        x = of_rank + dist.get_rank()
        way(x)
        if not torch.equal(x, of_rank + dist.get_world_size() - 1):
            raise RuntimeError(f"{numel} numbers: what came out is not the maximum of all ranks'")


def seconds(way: Callable[[Tensor], object], x: Tensor) -> float:
    """Of one call, which all ranks begin together."""
    dist.barrier()
    begin = time.perf_counter()
    way(x)
    return time.perf_counter() - begin


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_rank([int(size) for size in sys.argv[1:]])
