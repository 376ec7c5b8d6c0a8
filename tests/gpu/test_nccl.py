"""The conformance tests on NCCL: several ranks on one GPU where there is one, a GPU for each rank where there are more.

Needs torch, numpy and pytest, and no installation: `python -m pytest tests/gpu` in the repository.
"""

import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from checks import ALONE, CHECKS
from launcher import launch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
RANKS = [1, 2, 3] if GPUS <= 1 else [n for n in (2, 3, 4, 8) if n <= GPUS]

pytestmark = [
    pytest.mark.skipif(GPUS == 0, reason="no GPU: torch.cuda.is_available() is false"),
    pytest.mark.skipif(not dist.is_nccl_available(), reason="this build of torch has no NCCL"),
]


@lru_cache
def reports(n: int) -> list[dict[str, list[str]]]:
    """What n ranks found wrong, check by check. All checks run in one start of the ranks."""
    return launch(n, [f"cuda:{gpu}" for gpu in range(min(n, GPUS))], "nccl")


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("check", CHECKS)
def test_on_nccl(check: str, n: int) -> None:
    found = reports(n)
    if n > GPUS and any(rank.get("connected") != [] for rank in found):
        words = "\n".join(found[0].get("connected", found[0][""]))
        pytest.skip(f"NCCL does not let {n} ranks share this machine's {GPUS} GPU: {words[-300:]}")
    if n == 1 and check not in ALONE:
        pytest.skip("needs two ranks")
    for rank, checks in enumerate(found):
        assert checks.get(check) == [], f"rank {rank}: {checks.get(check, checks[''])}"
