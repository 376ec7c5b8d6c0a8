"""Prove everything: `python -m tests.prove`, which is `make test`.

What decides by a clock or counts what a whole machine does is marked `alone`; everything else runs side by side before
it, in three processes on two cores: a third of its time a test waits, for ranks that start or sleep. Afterwards it
says which tests took longest, and in one line how many minutes each part took, and how many seconds each folder.

Some tests take turns (`tests/turns.py`): the day decides which, and is printed. `--turn=N` has those of another day,
and `--all` has all of them, which takes longer. `--remember` writes down which took long.
"""

import os
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from pytest import ExitCode

from tests.turns import remember

TESTS = Path(__file__).parent
LONGEST = 40  # functions that are told
MOST = 6  # processes side by side: each has ranks of its own, 8 and more of them


def processes(cores: int) -> int:
    """How many run side by side: one waits while as many compute as there are cores."""
    return min(cores + (cores + 1) // 2, MOST)


class Seconds:
    """A plugin that adds up what tests take, with what is set up for them, by folder; what each part took by the clock;
    and which functions take longest, all their parameters together."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.parts: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, *folders, _ = report.nodeid.partition("::")[0].split("/")
        self.of[folders[0] if folders else "tests"] += report.duration
        self.functions[report.nodeid.partition("[")[0]] += report.duration

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {seconds / 60:.1f}" for part, seconds in self.parts.items())
        folders = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in self.of.most_common())
        longest = "\n".join(f"{seconds:6.0f} s  {name}" for name, seconds in self.functions.most_common(LONGEST))
        return f"{longest}\nminutes: {parts}; seconds by folder: {folders}"


def in_turn(options: list[str], day: int) -> list[str]:
    """The same options for pytest, with the turn of this day, unless they say which or that all have theirs."""
    if "--all" in options:
        return [option for option in options if option != "--all"]
    return options if any(option.startswith("--turn") for option in options) else [f"--turn={day}", *options]


def where_alone(options: list[str]) -> list[str]:
    """The files of tests that run alone: to collect all the others once more takes a quarter of a minute. None where
    the options say which tests are meant."""
    if any(Path(option.partition("::")[0]).exists() for option in options):
        return []
    return sorted(str(path) for path in TESTS.rglob("test_*.py") if "mark.alone" in path.read_text(encoding="utf-8"))


def prove(options: list[str]) -> int:
    """Run the tests, with these options of pytest besides. Returns the exit code of the part that fails, or 0."""
    remembers = "--remember" in options
    options = in_turn([option for option in options if option != "--remember"], date.today().toordinal())
    print(f"with {' '.join(options)}" if options else "with all that takes turns", flush=True)
    seconds, codes = Seconds(), []
    beside = ["-n", str(processes(os.cpu_count() or 1)), "--dist", "worksteal", "-m", "not alone"]
    for part, chosen in {"side by side": beside, "alone": ["-m", "alone", *where_alone(options)]}.items():
        begin = time.monotonic()
        codes.append(int(pytest.main([*chosen, *options], plugins=[seconds])))
        seconds.parts[part] = time.monotonic() - begin
        if codes[-1] not in (ExitCode.OK, ExitCode.TESTS_FAILED, ExitCode.NO_TESTS_COLLECTED):
            return codes[-1]  # it was interrupted, or the options are wrong
    print(seconds)
    if remembers:
        remember(seconds.functions)
    return ExitCode.TESTS_FAILED if ExitCode.TESTS_FAILED in codes else min(codes)


if __name__ == "__main__":
    sys.exit(prove(sys.argv[1:]))
