"""How long the launcher waits for ranks, and what these go through. Needs no GPU."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

import as_on_cpu
from launcher import collect, finish

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


CHECKED = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import ranks

def fails(group, device):
    raise ValueError("that rank fails")

ranks.CHECKS = {"wrong": lambda group, device: ["a wrong value"], "fails": fails, "right": lambda group, device: []}
ranks.main(0, 1, "cpu", "gloo", *sys.argv[1:], "lazy", "wrong", "fails", "right")
"""


def test_a_wrong_value_hides_no_later_check(tmp_path: Path) -> None:
    report, words = tmp_path / "report", tmp_path / "words"
    said = [str(Path(__file__).parent), str(tmp_path / "store"), str(report)]
    with words.open("w") as file:
        subprocess.run([sys.executable, "-c", CHECKED, *said], stdout=file, stderr=file, timeout=120)
    found = collect(report, words)
    assert (found["wrong"], found["right"]) == (["a wrong value"], []) and "that rank fails" in found["fails"][0]


def test_six_islands_can_meet_in_every_way() -> None:
    """So none is left out everywhere."""
    six = SimpleNamespace(size=lambda: 6)
    assert len([*as_on_cpu.meetings(six)]) == len([*as_on_cpu.island_options()])
