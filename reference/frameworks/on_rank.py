"""One rank of a framework's run: the adapter's losses, and what it says, holds and takes meanwhile.

    torchrun --nproc-per-node 2 -m reference.frameworks.on_rank torch fsdp2 FOLDER

The process group is there before the framework, with the tap of `reference.trace` in it: whatever goes through
`torch.distributed` is heard. Each rank writes what it found into the folder.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional

from reference.collectives import mpi
from reference.frameworks.catalogue import find
from reference.frameworks.plain import DENSE, EXPERTS, Course
from reference.trace.tap import BACKEND, Recorder, name_by_carrier, register

LOOKED_AT = 2  # steps in which memory is counted; bytes, calls and time are of those after them


def main(framework: str, feature: str, folder: str) -> None:
    """Run, and write `RANK.json`."""
    torch.set_num_threads(1)
    _, features = find(framework, feature)
    recorder = over_mpi() if features[feature].start == "mpiexec" else tapped()
    write(folder, watched(framework, feature, folder, recorder), dist.get_rank())
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # some frameworks keep threads that never end


def tapped() -> Recorder:
    """A world of gloo, and who hears what is said in it."""
    recorder = Recorder(int(os.environ["RANK"]))
    register(recorder)
    store, rank, size = next(dist.rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a store of its own: else a rank meets those that died
    dist.init_process_group(BACKEND, store=dist.PrefixStore(f"start {start}", store), rank=rank, world_size=size)
    name_by_carrier(dist.group.WORLD)
    return recorder


def over_mpi() -> Recorder:
    """The same of a world of MPI."""
    mpi.name_ranks()
    mpi.register()
    recorder = Recorder(mpi.rank())
    register(recorder, carrier=mpi.NAME)
    dist.init_process_group(BACKEND, store=mpi.store(), rank=mpi.rank(), world_size=mpi.size())
    name_by_carrier(dist.group.WORLD)
    return recorder


def write(folder: str, found: dict[str, Any], rank: int) -> None:
    """Leave what a rank found where `lab.runs` looks for it."""
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def course_of(framework: str, feature: str, folder: str) -> Course:
    """What a feature is to learn."""
    _, features = find(framework, feature)
    wanted = features[feature]
    config = EXPERTS if wanted.experts else DENSE
    islands = wanted.ranks if wanted.islands else 1
    learned = {"sgd": wanted.sgd, "islands": islands, "clients": wanted.clients}
    return Course(config, getattr(torch, wanted.dtype), **learned, folder=folder)


def watched(framework: str, feature: str, folder: str, recorder: Recorder) -> dict[str, Any]:
    """What this rank found by the means of a framework."""
    home, features = find(framework, feature)
    adapter = import_module(f"reference.frameworks.adapters.{features[feature].adapter}")
    course = course_of(framework, feature, folder)
    return gauged(adapter.losses(course, feature), home.packages, recorder)


def gauged(steps: Iterator[float | None], packages: tuple[str, ...], recorder: Recorder) -> dict[str, Any]:
    """Take all steps: their losses and seconds, bytes of memory in the first ones, and what was said in each.

    Args:
        steps: each takes one and yields its loss.
        packages: of the framework.
        recorder: who hears what this rank says.
    """
    losses: list[float | None] = []
    marks = []

    def take(some: Iterable[float | None]) -> list[float]:
        """The seconds of each."""
        seconds, began = [], time.perf_counter()
        for loss in some:
            seconds.append(time.perf_counter() - began)
            losses.append(loss)
            marks.append(len(recorder.calls))
            began = time.perf_counter()
        return seconds

    with recorder.recording():
        with peak_memory() as peak:
            take(islice(steps, LOOKED_AT))
        seconds = take(steps)
        rows = [call.event(recorder.rank).row() for call in recorder.calls]
    found = {"losses": losses, "seconds": seconds, "marks": marks, "peak": peak[0], "events": rows}
    return found | {"versions": versions(packages)}


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most bytes that torch's CPU allocator has given out inside, by its own account: in the list afterwards."""
    found: list[int] = [0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield found
    live = 0
    events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        found[0] = max(found[0], live)


def versions(packages: tuple[str, ...]) -> str:
    """What is installed of these, and torch: "deepspeed 0.19.8, torch 2.13.0+cpu"."""
    said = []
    for package in (*(each.partition("==")[0].partition("[")[0] for each in packages), "torch"):
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            said.append(f"{package} is missing")
    return ", ".join(said)


if __name__ == "__main__":
    main(*sys.argv[1:])
