"""Starts the ranks of the tests on GPUs, and collects what they report."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT = float(os.environ.get("GPU_TEST_LIMIT", "420"))
"""Seconds until some rank has reported one more check: many ranks make many groups, and take long."""
FIRST = 60.0  # seconds until the first report: NCCL that hangs when it starts is under no other watch

# NCCL refuses two ranks on one GPU of one host, which it tells by a hash of the host and the number on the bus. Ranks
# that claim different hosts, and talk over sockets, pass. NCCL says of it "not supported and may lead to hangs".
SHARING = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # as `reference.launch` asks for: see `reference.on_gpus`


def launch(
    world_size: int,
    devices: list[str],
    backend: str,
    start: str = "eager",
    only: Sequence[str] = (),
    limit: float = LIMIT,
) -> list[dict[str, list[str]]]:
    """Run checks on `world_size` ranks: for each rank, what each check found wrong.

    Args:
        world_size: ranks; rank i uses devices[i % len(devices)].
        devices: "cuda:0", ... or "cpu".
        backend: "nccl", or "gloo" to try the tests themselves where there is no GPU.
        start: "eager": one backend, communicators made at once; "lazy": as `reference.launch` and `Cluster` start, one
            for CPUs and one for GPUs, made when they are first used.
        only: names of checks; all of them by default.
        limit: seconds from one report to the next.

    A rank that ends without a report of a check lacks it, and has its last words under "".
    """
    sharing = world_size > len(devices) and backend == "nccl"
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"report{rank}") for rank in range(world_size)]
        words = [Path(folder, f"words{rank}") for rank in range(world_size)]

        def begin(rank: int) -> subprocess.Popen:
            device = devices[rank % len(devices)]
            place = (rank, world_size, device, backend, f"{folder}/store", reports[rank], start, *only)
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ranks.py")), *map(str, place)],
                env=CONNECTIONS | os.environ | (SHARING | {"NCCL_HOSTID": f"rank{rank}"} if sharing else {}),
                stdout=words[rank].open("w"),
                stderr=subprocess.STDOUT,
            )

        ranks = [begin(rank) for rank in range(world_size)]
        finish(ranks, reports, limit)
        return [collect(*of_rank) for of_rank in zip(reports, words, strict=True)]


def finish(ranks: list[subprocess.Popen], reports: list[Path], limit: float = LIMIT, first: float = FIRST) -> None:
    """Wait for all; once one has failed, or none has reported for too long, give the others a moment and end them.

    Args:
        ranks: that were started.
        reports: their files, which grow.
        limit: seconds from one report to the next.
        first: seconds until the first one.
    """
    reported, deadline = 0, time.monotonic() + min(first, limit)
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
        written = sum(report.stat().st_size for report in reports if report.exists())
        if any(rank.poll() for rank in ranks):
            deadline = min(deadline, time.monotonic() + 10)
        elif written > reported:
            reported, deadline = written, time.monotonic() + limit
    for rank in ranks:
        rank.kill()
        rank.wait()


def collect(report: Path, words: Path) -> dict[str, list[str]]:
    """What one rank has written."""
    found: dict[str, list[str]] = {"": words.read_text(errors="replace").splitlines()[-20:]}
    for line in report.read_text().splitlines() if report.exists() else ():
        found |= json.loads(line)
    return found


def wrong(reports: list[dict[str, list[str]]], names: Sequence[str]) -> dict[str, str]:
    """Of these checks, those that some rank has not passed, each with the end of what was said."""
    found = {}
    for name in names:
        for rank, checks in enumerate(reports):
            if checks.get(name) != []:
                said = checks.get(name, checks[""])
                found.setdefault(name, f"rank {rank}: {' '.join(said)[-400:]}")
    return found
