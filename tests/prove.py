"""Prove everything: `python -m tests.prove`, which is `make test`.

What decides by a clock or counts what a whole machine does is marked `alone`; everything else runs side by side before
it, in a process for each core. Afterwards one line says how many seconds each folder of `tests/` took.
"""

import os
import sys
from collections import Counter

import pytest

MOST = 4  # processes side by side: each has ranks of its own, 8 and more of them


class Seconds:
    """A plugin that adds up what tests take, with what is set up for them, by folder."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, *folders, _ = report.nodeid.partition("::")[0].split("/")
        self.of[folders[0] if folders else "tests"] += report.duration

    def __str__(self) -> str:
        return "seconds by folder: " + ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in self.of.most_common())


def prove(options: list[str]) -> int:
    """Run all tests with these options of pytest, too. Returns the exit code of the first part that fails, or 0."""
    seconds = Seconds()
    processes = min(len(os.sched_getaffinity(0)), MOST)
    parts = (["-n", str(processes), "--dist", "worksteal", "-m", "not alone"], ["-m", "alone"])
    codes = [int(pytest.main([*part, *options], plugins=[seconds])) for part in parts]
    print(seconds)
    return next((code for code in codes if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)), 0)


if __name__ == "__main__":
    sys.exit(prove(sys.argv[1:]))
