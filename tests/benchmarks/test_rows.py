"""What all benchmarks report has one form, and its ratios point the same way."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from rankwise.commands.bench import bench

PATH = Path(__file__).with_name("rows.py")
SPEC = spec_from_file_location("rows", PATH)
rows = sys.modules["rows"] = module_from_spec(SPEC)
SPEC.loader.exec_module(rows)


def test_a_ratio_above_one_is_better() -> None:
    assert rows.faster("time", ours=1.0, peer=3.0, unit="s", bar=2.0).ratio == 3.0
    assert rows.more("tokens", ours=3.0, peer=1.0, unit="tokens/s", bar=2.0).ratio == 3.0
    assert rows.below("memory", ours=100.0, limit=300.0, unit="MB").ratio == 3.0


@pytest.mark.parametrize(("ours", "holds"), [(1.0, True), (1.6, False)])
def test_a_bar_holds_from_its_ratio_on(ours: float, holds: bool) -> None:
    assert rows.faster("time", ours, peer=2.0, unit="s", bar=2.0).holds == holds
    assert rows.faster("time", ours, peer=2.0, unit="s").holds


def test_runs_take_turns_and_the_first_does_not_count() -> None:
    calls = []
    times = rows.interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, lambda: calls.append("-")
    )
    assert calls[::2] == ["-"] * 6
    rounds = [calls[begin + 1 : begin + 4 : 2] for begin in range(0, 12, 4)]
    assert all(sorted(names) == ["a", "b"] for names in rounds)
    assert ["a", "b"] in rounds and ["b", "a"] in rounds
    assert [len(times["a"]), len(times["b"])] == [2, 2]


def test_a_run_takes_as_long_as_on_its_slowest_rank() -> None:
    assert rows.of_ranks([{"a": [1.0, 5.0]}, {"a": [3.0, 2.0]}]) == {"a": [3.0, 5.0]}


def test_json_is_one_list_of_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--json"])
    with pytest.raises(SystemExit):
        rows.main("some", lambda report: report(rows.faster("slow", ours=3e-3, peer=1e-3, unit="s", bar=1.0)))
    (row,) = json.loads(capsys.readouterr().out)
    assert list(row) == ["name", "ours", "peer", "unit", "ratio", "bar", "holds"]
    assert row["holds"] is False


def test_a_table_says_what_holds() -> None:
    found = [rows.faster("fast", 1e-3, 2e-3, "s", 1.5), rows.below("small", 9.0, 8.0, "MB"), rows.plain("n", 3, "rows")]
    table = rows.table("some", found)
    assert "fast     1 ms  2 ms   2.00  1.50     ok" in table
    assert table.endswith("1 of 2 bars hold")


def test_runs_of_all_starts_are_joined() -> None:
    assert rows.joined([{"a": [1.0], "b": [5.0]}, {"a": [3.0, 2.0], "b": []}]) == {"a": [1.0, 3.0, 2.0], "b": [5.0]}


def test_what_is_listed_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench() == 0
    for name in capsys.readouterr().out.split():
        assert "def measure(" in PATH.with_name(f"bench_{name.replace('-', '_')}.py").read_text()
