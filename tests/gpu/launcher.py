"""Starts the ranks of the tests on GPUs, and collects what they report."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 420.0  # seconds until some rank has reported one more check: many ranks make many groups, and take long

# NCCL refuses two ranks on one GPU of one host. Ranks that claim different hosts, and talk over sockets, pass.
SHARING = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}


def launch(world_size: int, devices: list[str], backend: str) -> list[dict[str, list[str]]]:
    """Run all checks on `world_size` ranks: for each rank, what each check found wrong.

    Args:
        world_size: ranks; rank i uses devices[i % len(devices)].
        devices: "cuda:0", ... or "cpu".
        backend: "nccl", or "gloo" to try the tests themselves where there is no GPU.

    A rank that ends without a report of a check lacks it, and has its last words under "".
    """
    sharing = world_size > len(devices) and backend == "nccl"
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"report{rank}") for rank in range(world_size)]
        words = [Path(folder, f"words{rank}") for rank in range(world_size)]

        def start(rank: int) -> subprocess.Popen:
            place = (rank, world_size, devices[rank % len(devices)], backend, f"{folder}/store", reports[rank])
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ranks.py")), *map(str, place)],
                env=os.environ | (SHARING | {"NCCL_HOSTID": f"rank{rank}"} if sharing else {}),
                stdout=words[rank].open("w"),
                stderr=subprocess.STDOUT,
            )

        ranks = [start(rank) for rank in range(world_size)]
        finish(ranks, reports)
        return [collect(*of_rank) for of_rank in zip(reports, words, strict=True)]


def finish(ranks: list[subprocess.Popen], reports: list[Path], limit: float = LIMIT) -> None:
    """Wait for all; once one has failed, or none has reported for too long, give the others a moment and end them."""
    reported, deadline = 0, time.monotonic() + limit
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
