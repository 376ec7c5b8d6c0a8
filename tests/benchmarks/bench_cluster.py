"""The warm cluster against `torch.multiprocessing.spawn`: how long until something runs on 8 ranks, and at what price.

Cold runs are whole processes, ours and the peer's in turns: from nothing to the printed sum of an all-reduce on 8
ranks. The peer has nothing warm, so later rows are held against the limits that were promised.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from reference.cluster import Cluster, RankError, forkserver  # noqa: E402

RANKS = 8
COLD, WARM, ERRORS, LARGE, NAPS = 3, 300, 7, 9, 9  # runs of each kind
START, CALL, HEAL, MEMORY, RESULT = 5.0, 1e-3, 0.3, 300.0, 0.06  # what was promised: a ratio, s, s, MB, s

OURS = """
from reference.cluster import Cluster

def total():
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

with Cluster(8) as cluster:
    print(cluster.run(total)[0])
"""

SPAWN = """
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def total(rank, store, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=8)
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank == 0:
        queue.put(x.item())
    dist.destroy_process_group()

if __name__ == "__main__":
    queue = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(total, (folder + "/store", queue), nprocs=8)
    print(queue.get())
"""


def measure(report: Callable[[Row], None]) -> None:
    """Cold, warm, after an error, and what it costs in memory."""
    torch_first = OURS.replace("from reference", "import torch\nfrom reference", 1)
    programs = {"ours": OURS, "torch_first": torch_first, "spawn": SPAWN}
    with tempfile.TemporaryDirectory() as folder:
        scripts = {name: script(Path(folder, f"{name}.py"), text) for name, text in programs.items()}
        cold = rows.medians(rows.interleaved(scripts, COLD))
    report(rows.faster("cold start to the first all-reduce, 8 ranks", cold["ours"], cold["spawn"], "s", START))
    report(rows.faster("the same, where the caller has imported torch before", cold["torch_first"], cold["spawn"], "s"))
    with Cluster(RANKS) as cluster:
        cluster.run(nothing)
        warm = median(lambda: cluster.run(nothing), WARM)
        report(rows.below("warm call that does nothing, 8 ranks", warm, CALL, "s"))
        report(rows.faster("the same, against a spawn for each call", warm, cold["spawn"], "s"))
        healed = rows.medians({"heal": [seconds_to_heal(cluster) for _ in range(ERRORS)]})["heal"]
        report(rows.below("from an error on a rank to the next result, 8 ranks", healed, HEAL, "s"))
        report(rows.below("a result of 64 MB", median(lambda: cluster.run(large), LARGE), RESULT, "s"))
        cluster.restart()
        cluster.run(nothing)
        report(rows.below("memory of 8 idle ranks and their server (PSS)", memory(cluster), MEMORY, "MB"))
        cluster.run(nothing)
        report(rows.plain("processor time of 8 ranks that wait for a call, in a second", processor_time(cluster), "s"))
        fall_asleep(cluster)
        report(rows.plain("the same, asleep", processor_time(cluster), "s"))
        woken = rows.interleaved({"call": lambda: cluster.run(nothing)}, NAPS, lambda: fall_asleep(cluster))
        report(rows.plain("a call that wakes 8 ranks", rows.medians(woken)["call"], "s"))
    begin = time.perf_counter()
    with Cluster(32) as cluster:
        assert cluster.run(ranks_heard) == [32.0] * 32
        report(rows.plain("first all-reduce of 32 more ranks", time.perf_counter() - begin, "s"))


def script(file: Path, text: str) -> Callable[[], None]:
    """Runs a program in a new interpreter, and sees that it prints the sum over 8 ranks."""
    file.write_text(text)

    def run() -> None:
        environment = os.environ | {"PYTHONPATH": str(HOUSE)}
        done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == "8.0", done.stderr

    return run


def median(function: Callable[[], object], repeats: int) -> float:
    """Seconds of one call."""
    return rows.medians(rows.interleaved({"": function}, repeats))[""]


def nothing() -> None:
    """On every rank."""


def large() -> object:
    """64 MB from one rank."""
    import torch
    import torch.distributed as dist

    return torch.ones(16 << 20) if dist.get_rank() == 0 else None


def ranks_heard() -> float:
    """An all-reduce of ones."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def fail() -> None:
    """One rank fails and says when, the others wait for it."""
    import torch.distributed as dist

    if dist.get_rank() == 3:
        raise ValueError(time.monotonic())
    dist.barrier()


def seconds_to_heal(cluster: Cluster) -> float:
    """From the instant of an error on a rank to the result of the next call."""
    try:
        cluster.run(fail)
    except RankError as error:
        begin = float(error.details[0].removeprefix("ValueError: "))
    cluster.run(nothing)
    return time.monotonic() - begin


def memory(cluster: Cluster) -> float:
    """Megabytes of a cluster's processes, shared pages split among those who share them."""
    time.sleep(0.5)
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in [*cluster.pids, forkserver.shared().pid])
    return sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")) / 1024


def fall_asleep(cluster: Cluster) -> None:
    """As ranks do that were not called for a while."""
    cluster.suspend_if_idle(0)
    time.sleep(0.1)


def processor_time(cluster: Cluster) -> float:
    """Seconds of a core that the ranks take in a second in which they are not called."""

    def taken() -> int:
        threads = (thread for pid in cluster.pids for thread in Path(f"/proc/{pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)

    before, begin = taken(), time.monotonic()
    time.sleep(2)
    return (taken() - before) / (time.monotonic() - begin) / 1e9


if __name__ == "__main__":
    rows.main("cluster", measure)
