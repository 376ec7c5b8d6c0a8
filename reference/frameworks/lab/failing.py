"""What a reader sees when a rank dies, shapes differ, or a collective is missing: over gloo, over MPI, under our watch.

    python -m reference.frameworks.lab.failing            runs all, and writes data/errors.json

gloo and MPI are told to be patient for some seconds only: by themselves gloo waits for half an hour, and MPI forever.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from reference.cluster import Cluster, ClusterError, RankError
from reference.collectives import mpi
from reference.frameworks.words import DATA, Failure

from .runs import environment, last_error

EVENTS = ("a rank dies", "shapes differ", "a collective is missing")
PATIENCE = 6  # seconds of gloo
LIMIT = 180  # seconds in which both ranks have started, made their mistake, and been patient


def mistake(event: str) -> None:
    """What the ranks do."""
    rank = dist.get_rank()
    x = torch.ones(4 + (event == "shapes differ" and rank == 1))
    if event == "a rank dies" and rank == 1:
        os._exit(1)
    if not (event == "a collective is missing" and rank == 1):
        dist.all_reduce(x)
    dist.barrier()


def seen_over(start: str, event: str) -> str:
    """What two ranks say, and those who have started them."""
    program = ["-m", "reference.frameworks.lab.failing", start, event]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    if start == "MPI":
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", sys.executable, *program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment())
    except subprocess.TimeoutExpired:
        return "nothing: all ranks wait"
    said = done.stderr + done.stdout
    if done.returncode == 0:
        return "nothing: it ends as if all were well"
    if not said.strip():
        return f"nothing but exit code {done.returncode}"
    endings = [line for line in said.splitlines() if "EXIT CODE" in line or "Fatal error" in line]
    return " ".join(endings[0].split()) if start == "MPI" and endings else last_error(said)


def seen_by_the_watch(event: str) -> str:
    """What our watch says."""
    try:
        with Cluster(2, watch=True, timeout=60) as cluster:
            cluster.run(mistake, event)
    except (RankError, ClusterError) as error:
        return " ".join(str(error).split())
    return "nothing"


def all_failures() -> list[Failure]:
    """Each event over gloo, over MPI and under the watch."""
    found = []
    for event in EVENTS:
        found += [Failure(event, start, seen_over(start, event)) for start in ("gloo", "MPI")]
        found.append(Failure(event, "our watch", seen_by_the_watch(event)))
    return found


def on_rank(start: str, event: str) -> None:
    """One rank of a run that fails."""
    if start == "MPI":
        mpi.register()
        dist.init_process_group(mpi.NAME, store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    mistake(event)


def written(found: list[Failure]) -> list[Mapping[str, str]]:
    """Ready for JSON."""
    return [asdict(each) for each in found]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        on_rank(*sys.argv[1:])
    else:
        text = json.dumps(written(all_failures()), indent=1, ensure_ascii=False)
        (DATA / "errors.json").write_text(text + "\n", encoding="utf-8")
