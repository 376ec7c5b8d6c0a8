"""What took too long on a crowded machine is tried once more; what is wrong is not, and nothing is tried thrice."""

import os

import pytest

from puzzles.grading.cases import Case
from puzzles.grading.runs import Broken, patiently
from reference.cluster import RemoteException, TimeLimit
from reference.cluster.verdict import too_busy

CROWDED, IDLE = 99.0 * (os.cpu_count() or 1), 0.5
LATE = TimeLimit("time limit", "still running after 8 s", rank=0)
WRONG = RemoteException("exception", "KeyError: 1", rank=0)


@pytest.mark.parametrize(
    ("error", "load", "tries"),
    [
        (LATE, IDLE, 1),
        (LATE, CROWDED, 2),
        (WRONG, CROWDED, 1),
        (too_busy(160, rank=0), IDLE, 2),
    ],
)
def test_what_a_crowded_machine_made_late_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, error: Exception, load: float, tries: int
) -> None:
    tried = []

    def run(case: Case) -> None:
        tried.append(case)
        raise Broken(error, case, "")

    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    with pytest.raises(Broken):
        patiently(run, Case(2))
    assert len(tried) == tries


def test_the_second_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [LATE, None]

    def run() -> str:
        if error := outcomes.pop(0):
            raise Broken(error, Case(2), "")
        return "right"

    monkeypatch.setattr(os, "getloadavg", lambda: (CROWDED,) * 3)
    assert patiently(run) == "right"
