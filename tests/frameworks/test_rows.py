"""The stored table: a row for each feature, which says what the catalogue says."""

from pathlib import Path

import pytest

from reference.frameworks import rows
from reference.frameworks.catalogue import FRAMEWORKS, find
from reference.frameworks.lab import runs
from reference.frameworks.lab.runs import ADAPTERS, code_lines, last_error
from reference.frameworks.plain import Course
from reference.frameworks.rows import FeatureRow
from reference.trace import Event, Op

STORED = {(row.framework, row.feature): row for row in rows.load()}
ALL = [(name, feature) for name, framework in FRAMEWORKS.items() for feature in framework.features]


@pytest.mark.parametrize("key", ALL, ids="-".join)
def test_a_feature_has_a_row_that_says_what_the_catalogue_says(key: tuple[str, str]) -> None:
    framework, features = find(*key)
    row, wanted = STORED[key], features[key[1]]
    if wanted.error:
        assert wanted.error in row.error
        return
    assert not row.error
    assert row.is_equal or wanted.wrong
    assert all(package.partition("[")[0].partition("==")[0] in row.versions for package in framework.packages)
    if row.formula is not None:
        assert (row.sent == row.formula) == (not wanted.differs), row


def test_no_row_is_of_a_feature_that_is_gone() -> None:
    assert set(STORED) <= set(ALL)


def test_what_was_not_measured_is_no_zero() -> None:
    assert not {"0", "0 ms"} & {word for line in rows.table(rows.load()) for word in line}


def test_each_row_counts_the_lines_that_its_adapter_has() -> None:
    """Else `python -m reference.frameworks.lab.runs` makes it anew."""
    assert [row for row in rows.load() if runs.counted(row) != row] == []


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_is_a_page(path: Path) -> None:
    assert code_lines(path) <= 80


def test_the_first_error_of_a_run_is_named() -> None:
    said = "W1126 x\n[rank1]: Traceback\n[rank1]: ValueError: no\ntorch.x.ChildFailedError: \nRuntimeError: later"
    assert last_error(said) == "ValueError: no"


def test_rows_replace_those_of_the_same_feature(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows.store([FeatureRow("a", "b", 2, 10), FeatureRow("a", "c", 2, 10)], path)
    rows.store([FeatureRow("a", "b", 4, 11, apart=0.0)], path)
    assert rows.load(path) == [FeatureRow("a", "b", 4, 11, apart=0.0), FeatureRow("a", "c", 2, 10)]


@pytest.mark.long
def test_a_rank_dies_and_torchrun_starts_all_again() -> None:
    """The way from `rankwise frameworks run` to a row: torchrun, the tap, a file of each rank."""
    framework, features = find("torch", "elastic")
    row = runs.run("torch", framework, "elastic", features["elastic"])
    assert row.error == ""
    assert row.is_equal
    assert row.calls == {"all_gather": 10, "reduce_scatter": 5}


ALL_REDUCE = Event(0, Op.ALL_REDUCE, (0, 1), None, 0, (125,), "float64", 1000, (), "sum", "", 0, 0, 1, 0.0, 0.1)


def test_bytes_of_islands_are_those_of_a_round_shared_out() -> None:
    """One all-reduce of 1,000 bytes of two ranks, at the end of each five steps: each rank sends 1,000, 200 a step."""
    course, wanted = Course(islands=2), FRAMEWORKS["torchft"].features["diloco"]
    event = {"losses": [1.0] * 20, "marks": [(step + 1) // 5 for step in range(20)], "seconds": [0.1] * 18}
    event |= {"peak": 1, "versions": "", "events": [ALL_REDUCE.row() for _ in range(4)]}
    found = runs.seen([event, event], wanted, course)
    assert (found["sent"], found["calls"], found["at_start"]) == (200, {"all_reduce": 1}, 0)
