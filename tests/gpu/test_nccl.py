"""The conformance tests on NCCL: several ranks on one GPU where there is one, a GPU for each rank where there are more.

Needs torch, numpy and pytest, and no installation: `python -m pytest tests/gpu` in the repository. Where a GPU is there
for the first time, run `python -m tests.gpu.first_half_hour` before. `GPU_TEST_LIMIT` is how many seconds a check may
take.
"""

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from checks import CHECKS, ROOT, names_for
from launcher import launch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
RANKS = [1, 2, 3] if GPUS <= 1 else [n for n in (2, 3, 4, 8) if n <= GPUS]
STARTS = [("eager", n) for n in RANKS] + [("lazy", n) for n in RANKS if n <= 2]

pytestmark = [
    pytest.mark.skipif(GPUS == 0, reason="no GPU: torch.cuda.is_available() is false"),
    pytest.mark.skipif(not dist.is_nccl_available(), reason="this build of torch has no NCCL"),
]


@lru_cache
def reports(start: str, n: int) -> list[dict[str, list[str]]]:
    """What n ranks found wrong, check by check. All checks run in one start of the ranks."""
    devices = [f"cuda:{gpu}" for gpu in range(min(n, GPUS))]
    if n > GPUS:  # first whether NCCL lets them share a GPU at all: with two, even where three are asked for
        connected = launch(2, devices, "nccl", start, only=["connected"])
        if any(rank.get("connected") != [] for rank in connected):
            return connected
    return launch(n, devices, "nccl", start)


@pytest.mark.parametrize(("start", "n"), STARTS)
@pytest.mark.parametrize("check", CHECKS)
def test_on_nccl(check: str, start: str, n: int) -> None:
    if check not in names_for(n, start):
        pytest.skip("needs two ranks, or groups for CPUs beside those for GPUs")
    found = reports(start, n)
    if n > GPUS and any(rank.get("connected") != [] for rank in found):
        words = "\n".join(found[0].get("connected", found[0][""]))
        pytest.skip(f"NCCL does not let {n} ranks share this machine's {GPUS} GPU: {words[-300:]}")
    for rank, checks in enumerate(found):
        assert checks.get(check) == [], f"rank {rank}: {checks.get(check, checks[''])}"


def test_launch_trains_on_the_gpu_and_says_so() -> None:
    options = ["--model", "tiny", "--steps", "3", "--device", "cuda"]
    command = [sys.executable, "-m", "reference.train", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1 ranks, cuda" in done.stdout, done.stderr


def place_of_a_product() -> tuple[str, str]:
    """Where a rank of a cluster says that it computes, and where it does."""
    from rankwise.on_rank import own_device

    x = torch.ones(4, 4, device=own_device())
    dist.all_reduce(x)
    return str(own_device()), str((x @ x).device)


def test_ranks_of_a_cluster_compute_on_gpus() -> None:
    pytest.importorskip("cloudpickle")
    from reference.cluster import Cluster

    ranks = max(n for n in (1, *RANKS) if n <= GPUS)
    with Cluster(ranks, device="cuda") as cluster:
        assert cluster.run(place_of_a_product) == [(f"cuda:{rank}", f"cuda:{rank}") for rank in range(ranks)]
