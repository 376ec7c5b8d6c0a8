"""A rank that is killed at any moment of a save leaves a checkpoint that is right: the new one, or the one before."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST = {0: 60, 1: 20}
"""How many moments a save of two ranks has at least, by victim: rank 0 seals, and deletes what is too old."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("in_background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_at_any_moment_leaves_a_checkpoint_that_is_right(
    tmp_path: Path, victim: int, in_background: bool
) -> None:
    """`kills` loads what is left on another number of ranks, compares it with what training gives, and saves again."""
    command = [sys.executable, "-m", "tests.resilience.kills", tmp_path, str(victim)]
    options = ["background"] if in_background else []
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    moments, steps = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert moments == (*range(1, len(moments) + 1),) and len(moments) >= LEAST[victim]
    assert list(steps) == sorted(steps) and set(steps) <= {2, 3}  # from some moment on the new one is there
    assert steps[0] == 2 and (victim == 1 or steps[-1] == 3)
