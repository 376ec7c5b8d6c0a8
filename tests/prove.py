"""Prove everything: `python -m tests.prove`, which is `make test`.

What decides by a clock or counts what a whole machine does is marked `alone`; everything else runs side by side before
it, in a process for each core. Afterwards one line says how many seconds each folder of `tests/` took.
"""

import os
import sys
from collections import Counter

import pytest
from pytest import ExitCode

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
    """Run all tests, with these options of pytest besides. Returns the exit code of the part that fails, or 0."""
    seconds, codes = Seconds(), []
    processes = min(os.cpu_count() or 1, MOST)
    for part in (["-n", str(processes), "--dist", "worksteal", "-m", "not alone"], ["-m", "alone"]):
        codes.append(int(pytest.main([*part, *options], plugins=[seconds])))
        if codes[-1] not in (ExitCode.OK, ExitCode.TESTS_FAILED, ExitCode.NO_TESTS_COLLECTED):
            return codes[-1]  # it was interrupted, or the options are wrong
    print(seconds)
    return ExitCode.TESTS_FAILED if ExitCode.TESTS_FAILED in codes else min(codes)


if __name__ == "__main__":
    sys.exit(prove(sys.argv[1:]))
