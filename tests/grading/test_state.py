"""The history: whatever is killed when, no finished attempt is lost, and any number of faces may write."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from puzzles.grading.state import State
from reference.errors import BadInput

_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from puzzles.grading.state import State

state = State(Path(sys.argv[1]))
for number in range(10**9):
    attempt = state.begin("ranks.pair", f"text {number} " + "x" * 5000, "test")
    state.finish(attempt, "passed", "", 0.1)
    print(attempt, flush=True)
"""


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / ".rankwise" / "state.db")


def test_an_attempt_is_kept_with_its_verdict(state: State) -> None:
    attempt = state.begin("ranks.pair", "def pair(): ...", "notebook")
    state.finish(attempt, "wrong values", "expected 1, got 2", 0.2)
    (kept,) = state.history("ranks.pair")
    assert (kept.face, kept.source, kept.stage, kept.passed) == ("notebook", "def pair(): ...", "wrong values", False)
    assert state.history("ranks.other") == []


def test_attempts_are_numbered_puzzle_by_puzzle(state: State) -> None:
    for puzzle, source in (("ranks.pair", "a"), ("ranks.swap", "b"), ("ranks.pair", "c"), ("ranks.swap", "d")):
        state.begin(puzzle, source, "test")
    assert [(kept.puzzle[6:], kept.number) for kept in state.history()] == [
        ("pair", 1), ("swap", 1), ("pair", 2), ("swap", 2),
    ]  # fmt: skip
    assert [kept.number for kept in state.history("ranks.swap")] == [1, 2]
    assert state.attempt("ranks.swap", 2).source == "d"
    assert state.attempt("ranks.swap", 3) is None and state.attempt("ranks.ring_shift", 1) is None


def test_reading_somebody_elses_history_leaves_no_trace(state: State) -> None:
    state.begin("ranks.pair", "text", "test")
    folder = state.path.parent
    before = folder.stat().st_mtime_ns, sorted(folder.iterdir())
    assert [kept.source for kept in State(state.path, visited=True).history()] == ["text"]
    assert before == (folder.stat().st_mtime_ns, sorted(folder.iterdir()))


def test_somebody_elses_history_is_read_while_it_is_written(state: State) -> None:
    state.begin("ranks.pair", "old", "test")
    with contextlib.closing(sqlite3.connect(state.path)) as writer:  # keeps the log from being folded in
        writer.execute("SELECT * FROM attempts").fetchall()
        state.begin("ranks.pair", "new", "test")
        assert [kept.source for kept in State(state.path, visited=True).history()] == ["old", "new"]


def test_a_check_that_never_ended_keeps_its_text(state: State) -> None:
    state.begin("ranks.pair", "while True: ...", "python")
    (kept,) = state.history()
    assert (kept.source, kept.stage) == ("while True: ...", "")


def test_reading_writes_nothing(state: State) -> None:
    assert state.history() == [] and not state.passed("ranks.pair") and state.prediction("?") is None
    assert not state.path.exists()


def test_a_text_is_kept_once(state: State) -> None:
    for _ in range(2):
        state.keep("ranks.pair", "same", "reset")
    state.keep("ranks.pair", "other", "reset")
    assert [attempt.source for attempt in state.history()] == ["same", "other"]


def test_hints_come_one_after_the_other_and_the_last_one_stays(state: State) -> None:
    assert [state.next_hint("ranks.pair", 3) for _ in range(5)] == [0, 1, 2, 2, 2]


def test_the_last_prediction_counts(state: State) -> None:
    state.predict("how long?", {"seconds": 1.0})
    state.predict("how long?", {"seconds": 2.0})
    assert state.prediction("how long?") == {"seconds": 2.0}


def test_a_writer_killed_at_any_instant_loses_nothing_it_has_finished(state: State) -> None:
    finished: set[int] = set()
    for delay in (0.00, 0.01, 0.02, 0.03, 0.05):
        command = [sys.executable, "-c", _WRITE_FOR_EVER, str(state.path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        first = writer.stdout.readline()
        time.sleep(delay)
        os.kill(writer.pid, signal.SIGKILL)
        said = [first, *writer.stdout.readlines()]
        writer.wait()
        finished |= {int(line) for line in said if line.endswith("\n")}
        kept = {attempt.id: attempt for attempt in state.history()}
        assert finished <= kept.keys()
        assert all(kept[number].passed and kept[number].source.endswith("x") for number in finished)
    with sqlite3.connect(state.path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _write(path: Path, count: int) -> None:
    state = State(path)
    for number in range(count):
        state.finish(state.begin("ranks.pair", f"{os.getpid()} {number}", "test"), "passed", "", 0.0)


def test_many_faces_write_at_once(state: State) -> None:
    with ProcessPoolExecutor(4) as faces:
        list(faces.map(_write, [state.path] * 4, [25] * 4))
    attempts = state.history()
    assert len(attempts) == 100 == len({attempt.source for attempt in attempts})
    assert all(attempt.passed for attempt in attempts)


def test_many_faces_make_the_file_at_once(tmp_path: Path) -> None:
    """Only one of them can turn on write-ahead logging at a time, and SQLite itself does not let the others wait."""
    with ProcessPoolExecutor(4) as faces:
        for number in range(20):
            path = tmp_path / f"{number}.db"
            list(faces.map(_write, [path] * 4, [1] * 4))
            assert len(State(path).history()) == 4


def _a_folder(path: Path) -> None:
    path.mkdir(parents=True)


def _no_database(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("something else " * 100)


def _below_a_file(path: Path) -> None:
    path.parent.write_text("")


@pytest.mark.parametrize("spoil", [_a_folder, _no_database, _below_a_file])
def test_a_file_that_cannot_be_used_is_said_with_a_remedy(state: State, spoil: Callable[[Path], None]) -> None:
    spoil(state.path)
    with pytest.raises(BadInput, match=r"state\.db can't be used \(.+\): (move it away|it must be a file)"):
        state.begin("ranks.pair", "text", "test")
    if spoil is not _below_a_file:
        with pytest.raises(BadInput, match=r"state\.db can't be used"):
            state.history()


def _refused(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = code
    return error


class _Unwritable(sqlite3.Connection):
    """What SQLite does in a folder that may not be written."""

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA journal_mode"):
            raise _refused(sqlite3.SQLITE_CANTOPEN)
        return super().execute(sql, *values)


def test_only_another_writer_is_waited_for(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(seconds: float) -> None:
        pytest.fail("waits for a folder to become writable")

    monkeypatch.setattr("puzzles.grading.state.sqlite3.connect", partial(sqlite3.connect, factory=_Unwritable))
    monkeypatch.setattr("puzzles.grading.state.time.sleep", waits)
    with pytest.raises(BadInput, match="a folder that you may write"):
        state.begin("ranks.pair", "text", "test")


def test_reading_needs_no_write_access(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def read_only(where: str, **options: object) -> sqlite3.Connection:
        if "mode=ro" not in where:
            raise _refused(sqlite3.SQLITE_CANTOPEN)
        return connect(where, **options)

    state.begin("ranks.pair", "text", "test")
    monkeypatch.setattr("puzzles.grading.state.sqlite3.connect", read_only)
    assert [attempt.source for attempt in state.history()] == ["text"]


def test_reading_waits_for_no_writer(state: State) -> None:
    state.begin("ranks.pair", "text", "test")
    with contextlib.closing(sqlite3.connect(state.path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert [attempt.source for attempt in state.history()] == ["text"]


def test_an_empty_file_is_an_empty_history(state: State) -> None:
    state.path.parent.mkdir()
    state.path.touch()
    assert state.history() == []
