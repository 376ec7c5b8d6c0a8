"""`rankwise doctor`: can this machine run the course? One line for each thing that matters, and what to do about it."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

RANKS = 4
MEMORY = 4 << 30  # bytes that 8 ranks with a small model want
SHARED = 1 << 30  # bytes of /dev/shm, where DataLoader workers and graded code put theirs


class State(StrEnum):
    """How a finding looks."""

    OK = "ok"
    NOTE = "note"  # works, with less
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    state: State
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state:<6}{self.what}" + (f": {self.remedy}" if self.remedy else "")


def doctor() -> int:
    """Test whether this machine can run the course, and say what to do where it can't.

    Under torchrun on several nodes (`torchrun ... --no-python rankwise doctor`): measure the links between them.
    """
    if int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1:
        for finding in links():
            print(finding, flush=True)
        return 0
    findings = []
    for examine in EXAMINATIONS:
        for finding in examine():
            findings.append(finding)
            print(finding, flush=True)
    return int(any(finding.state is State.WRONG for finding in findings))


def python() -> Iterator[Finding]:
    """The interpreter, and the system below it."""
    text = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if os.name == "nt":
        yield Finding(State.WRONG, text, "there is no fork on Windows, use WSL")
    elif sys.platform != "linux":
        yield Finding(State.NOTE, text, "all works but the guards that Linux alone has: stray processes are not found")
    else:
        yield Finding(State.OK, text)


def packages() -> Iterator[Finding]:
    """The versions that matter."""
    for name, known in (("torch", ((2, 11), (2, 13))), ("numpy", None), ("cloudpickle", None), ("matplotlib", None)):
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(State.WRONG, f"no {name}", "pip install -e . -c constraints.txt")
            continue
        release = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
        if known is None or known[0] <= release <= known[1]:
            yield Finding(State.OK, f"{name} {found}")
        else:
            yield Finding(State.NOTE, f"{name} {found}", "tried with 2.11 to 2.13 only")


def machine() -> Iterator[Finding]:
    """Cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slow = "ranks take turns, benchmarks of 8 ranks mean little" if cores < 2 else ""
    yield Finding(State.NOTE if slow else State.OK, f"{cores} cores", slow)
    free = free_memory()
    if free is not None:
        low = "close other programs: 8 ranks with a small model want 4 GiB" if free < MEMORY else ""
        yield Finding(State.NOTE if low else State.OK, f"{free / 2**30:.1f} GiB of memory free", low)
    if sys.platform == "linux":
        yield shared_memory()


def free_memory() -> int | None:
    """Bytes that can be had without swapping, or None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def shared_memory() -> Finding:
    """Room in /dev/shm."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Finding(State.NOTE, "no /dev/shm", "DataLoader workers will not run")
    low = "in a container, start it with --shm-size=2g" if free < SHARED else ""
    return Finding(State.NOTE if low else State.OK, f"{free / 2**30:.1f} GiB of /dev/shm free", low)


def kernel() -> Iterator[Finding]:
    """What the cluster asks of Linux, tried one by one."""
    if sys.platform != "linux":
        return
    from reference.cluster.server import children

    features: dict[str, tuple[Callable[[], object], State, str]] = {
        "batch scheduling": (
            lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
            State.NOTE,
            "slow small messages",
        ),
        "files without a name": (
            lambda: os.close(os.memfd_create("doctor")),
            State.WRONG,
            "no cluster can start",
        ),
        "a look at child processes": (
            lambda: children(os.getppid())[0],
            State.NOTE,
            "stray processes are not found",
        ),
    }
    for feature, (try_it, without, lost) in features.items():
        try:
            try_it()
        except (OSError, IndexError) as error:
            yield Finding(without, f"no {feature}", f"{lost} ({error}); a container's seccomp profile may forbid it")
        else:
            yield Finding(State.OK, feature)


def walls() -> Iterator[Finding]:
    """What the kernel keeps graded code from: each wall of `reference.cluster.confine`, tried on a rank."""
    from reference.cluster import Cluster, ClusterError

    try:
        with Cluster(1, untrusted=True, timeout=60) as cluster:
            cluster.ready()
            missing = cluster.unenforced
    except ClusterError as error:
        yield Finding(State.WRONG, "a rank for graded code does not start", str(error))
        return
    for wall in missing:
        yield Finding(State.NOTE, f"graded code is not kept from all: no {wall}", "a verdict says so, too")
    if not missing:
        yield Finding(State.OK, "graded code has a network of its own, reads no course, and starts no program")


def ranks() -> Iterator[Finding]:
    """Four ranks that sum something."""
    from reference.cluster import Cluster, ClusterError, RankError

    begin = time.perf_counter()
    try:
        with Cluster(RANKS, timeout=60) as cluster:
            sums = cluster.run(total)
            started = time.perf_counter() - begin
            cluster.run(total)
            again = time.perf_counter() - begin - started
    except (ClusterError, RankError) as error:
        yield Finding(State.WRONG, f"{RANKS} ranks do not work", str(error))
        return
    right = sums == [sum(range(RANKS))] * RANKS
    state = State.OK if right else State.WRONG
    yield Finding(
        state, f"{RANKS} ranks all-reduce to {sums[0]:g}, {started:.1f} s from nothing, {again * 1e3:.1f} ms warm"
    )


def nodes() -> Iterator[Finding]:
    """Several machines on this one, for the lessons on links between nodes."""
    from reference.cluster import Nodes

    if found := Nodes.available():
        yield Finding(State.OK, "nodes: several machines on this one, with links of a chosen speed")
    else:
        yield Finding(State.NOTE, "no nodes with links of a chosen speed", found.why_not)


def total() -> float:
    """The sum of all ranks."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return x.item()


def gpus() -> Iterator[Finding]:
    """What `device="cuda"` would use."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        yield Finding(State.NOTE, "no GPU", "all lessons run without; tests/gpu is skipped")
    for index in range(count):
        yield Finding(State.OK, f"GPU {index}: {torch.cuda.get_device_name(index)}")


def links() -> Iterator[Finding]:
    """The links between the nodes of this job, on its rank 0."""
    import torch.distributed as dist

    from rankwise.between_nodes import measured_links, rate_text

    dist.init_process_group("gloo")
    found = measured_links()
    if found is not None and dist.get_rank() == 0:
        for a, b in found.pairs():
            rates = f"{rate_text(found.rate[a][b])} there, {rate_text(found.rate[b][a])} back"
            late = f"{1e3 * max(found.latency[a][b], found.latency[b][a]):.2g} ms"
            yield Finding(State.OK, f"{found.names[a]} - {found.names[b]}: {rates}, {late}")
        slow = [*found.slow()]
        for what in slow:
            yield Finding(State.NOTE, what, "look at its cable, its port, its driver's speed and what else uses it")
        if not slow:
            yield Finding(State.OK, "no node and no link is much slower than the others")
    dist.barrier()
    dist.destroy_process_group()


EXAMINATIONS = (python, packages, machine, kernel, walls, ranks, nodes, gpus)
COMMANDS = (doctor,)
