"""What a reader sees when a rank dies, shapes differ, or a collective is missing: over gloo, over MPI, in frameworks
that make the same mistakes through what they have for a sum (`failing_in`), and under our watch.

    python -m reference.frameworks.lab.failing            runs all, and writes data/errors.json
    python -m reference.frameworks.lab.failing "DeepSpeed"                               or one of them

gloo is told to be patient for some seconds only: by itself it waits for half an hour. MPI waits forever. What is not
installed keeps its lines.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster, ClusterError, RankError
from reference.collectives import mpi
from reference.errors import BadInput
from reference.frameworks.catalogue import find
from reference.frameworks.environments import python_of, variables
from reference.frameworks.words import DATA, Failure, failures

from .runs import last_error

EVENTS = ("a rank dies", "shapes differ", "a collective is missing")
PATIENCE = 6  # seconds of gloo
ELSEWHERE = {
    "DeepSpeed": "deepspeed",
    "Megatron Core": "megatron",
    "Accelerate": "accelerate",
    "Accelerate, ACCELERATE_DEBUG_MODE=1": "accelerate",
    "Ray Train": "ray",
}
"""Frameworks that make the mistakes by their own means, and what the catalogue calls them."""
RANK = "rank"  # what a program is told that is one of those that fail
WATCH = "our watch"
WAYS = ("gloo", "MPI", *ELSEWHERE, WATCH)
"""In the order in which their lines are stored."""
LIMIT = 600  # seconds in which both ranks have started, made their mistake, and been patient


def mistake(event: str, all_reduce: Callable[[Tensor], object] = dist.all_reduce) -> None:
    """What the ranks do, with the sum over ranks that a framework has."""
    rank = dist.get_rank()
    x = torch.ones(4 + (event == "shapes differ" and rank == 1))
    if event == "a rank dies" and rank == 1:
        os._exit(1)
    if not (event == "a collective is missing" and rank == 1):
        all_reduce(x)
    dist.barrier()


def seen_over(start: str, event: str) -> str:
    """What two ranks say, and those who have started them.

    Raises:
        BadInput: if a framework is not installed, or takes too long to start.
    """
    name = ELSEWHERE.get(start, "torch")
    framework, features = find(name)
    python = python_of(name, framework)
    program = ["-m", f"reference.frameworks.lab.failing{'_in' if start in ELSEWHERE else ''}", RANK, start, event]
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    if all(each.start == "python" for each in features.values()):  # it starts its ranks itself
        command = [python, *program]
    if start == "MPI":
        command = [str(Path(python).parent / "mpiexec"), "-n", "2", python, *program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with variables(python) as told, subprocess.Popen(command, env=told, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            if start == "MPI":
                return "nothing: all ranks wait"  # it is patient without end
            raise BadInput(f"{start} has not come to its mistake in {LIMIT} s: let this machine do less") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and all that it has started
    said = errors + output
    if process.returncode == 0:
        return "nothing: it ends as if all were well"
    if not said.strip():
        return f"nothing but exit code {process.returncode}"
    named = last_error(said)
    if named.endswith(":"):  # of Ray: the reason stands below
        named += " " + last_error(said.partition(named)[2])
    of_starters = ("EXIT CODE", "Fatal error", "exitcode")
    endings = [line for line in said.splitlines() if any(word in line for word in of_starters)]
    return " ".join(endings[0].split()) if endings and (start == "MPI" or named.startswith("=")) else named


def seen_by_the_watch(event: str) -> str:
    """What our watch says."""
    try:
        with Cluster(2, watch=True, timeout=60) as cluster:
            cluster.run(mistake, event)
    except (RankError, ClusterError) as error:
        return " ".join(str(error).split())
    return "nothing"


def seen(where: str) -> list[Failure]:
    """Each event, one of the `WAYS`; as it is stored, where a framework is not installed."""
    look = seen_by_the_watch if where == WATCH else partial(seen_over, where)
    try:
        return [Failure(event, where, look(event)) for event in EVENTS]
    except BadInput as missing:
        print(f"as stored: {missing}", flush=True)
        return [each for each in failures() if each.where == where]


def meet() -> None:
    """Wait for the ranks of `torchrun` that still start, so that what is patient is so with the mistake alone."""
    late = timedelta(seconds=LIMIT)
    store, _, ranks = next(dist.rendezvous("env://", timeout=late))
    if store.add("ranks that are here", 1) == ranks:
        store.set("all are here", "")
    store.wait(["all are here"], late)


def on_rank(start: str, event: str) -> None:
    """One rank of a run that fails."""
    if start == "MPI":
        mpi.register()
        dist.init_process_group(mpi.NAME, store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())
    else:
        meet()
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    mistake(event)


def store(ways: Iterable[str]) -> None:
    """Run these, and write their lines in the place of older ones, by event and then in the order of `WAYS`."""
    found = {(each.event, each.where): each for each in failures()}
    for where in ways:
        found |= {(each.event, each.where): each for each in seen(where)}
        ordered = [asdict(found[key]) for key in product(EVENTS, WAYS) if key in found]
        text = json.dumps(ordered, indent=1, ensure_ascii=False)
        (DATA / "errors.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [RANK]:
        on_rank(*sys.argv[2:])
    else:
        store(sys.argv[1:] or WAYS)
