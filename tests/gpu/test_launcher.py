"""How long the launcher waits for ranks. Needs no GPU."""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from launcher import finish

REPORTS = """
import sys, time
for _ in range(int(sys.argv[2])):
    with open(sys.argv[1], "a") as report:
        print("{}", file=report)
    time.sleep(0.5)
time.sleep(float(sys.argv[3]))
"""


def rank(report: Path, lines: int, silent: float) -> subprocess.Popen:
    """A process that reports so often, and is then silent for so many seconds."""
    return subprocess.Popen([sys.executable, "-c", REPORTS, str(report), str(lines), str(silent)])


def test_ranks_that_go_on_reporting_are_left_to_their_end(tmp_path: Path) -> None:
    ranks = [rank(tmp_path / "report", lines=16, silent=0)]
    finish(ranks, [tmp_path / "report"], limit=6)
    assert ranks[0].returncode == 0


def test_ranks_that_fall_silent_are_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    ranks = [rank(tmp_path / "report", lines=1, silent=600)]
    finish(ranks, [tmp_path / "report"], limit=2)
    assert ranks[0].returncode != 0 and time.monotonic() - began < 60
