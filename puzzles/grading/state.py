"""What a learner has done so far: every attempt, hint and prediction, in one SQLite file.

Written so that nothing is lost, whatever is killed when: each entry is one transaction, write-ahead logged and synced.
An attempt is entered before its check begins, and completed with the verdict after it. Any number of faces (a
notebook, pytest, a terminal) may write at the same time. Connections live for one operation: nothing survives a fork.
Reading takes no lock and needs no write access. A file that can't be used raises BadInput, whatever one does with it.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.errors import BadInput

KEPT = ("reset", "replaced", "update")  # why an unchecked text is kept
_PATIENCE = 10.0  # seconds to wait for another writer
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_READ_ONLY = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_REMEDIES = dict.fromkeys(_BUSY, "close the program that holds it, or wait for it") | {
    sqlite3.SQLITE_NOTADB: "move it away, and a new history begins",
    sqlite3.SQLITE_CORRUPT: "move it away, and a new history begins",
    sqlite3.SQLITE_FULL: "make room on the disk",
}
_USUAL_REMEDY = "it must be a file that you may write, in a folder that you may write"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, puzzle TEXT NOT NULL, began REAL NOT NULL, face TEXT NOT NULL,
    source TEXT NOT NULL, stage TEXT, reason TEXT, seconds REAL
);
CREATE INDEX IF NOT EXISTS attempts_of ON attempts (puzzle, id);
CREATE TABLE IF NOT EXISTS hints (puzzle TEXT PRIMARY KEY, shown INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, question TEXT NOT NULL, made REAL NOT NULL, answer TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Attempt:
    """One entry of the history.

    Attributes:
        id: among all entries, in the order of their beginning.
        number: among those of its puzzle: 1, 2, 3, ...
        began: seconds since 1970.
        face: where it came from: "notebook", "pytest", "rankwise", "python"; or why it was kept, see `KEPT`.
        stage: a `verdict.Stage`'s value; "" where nothing was checked, or the check was killed.
        seconds: that the check took.
    """

    id: int
    number: int
    puzzle: str
    began: float
    face: str
    source: str
    stage: str
    reason: str
    seconds: float

    @property
    def passed(self) -> bool:
        """True where the check said so."""
        return self.stage == "passed"


class State:
    """The file, by operations. Made when it is first written.

    Args:
        path: of the file.
        visited: another learner's: reading leaves no trace in its folder.
    """

    def __init__(self, path: Path, visited: bool = False) -> None:
        self.path, self.visited = path, visited

    def begin(self, puzzle: str, source: str, face: str) -> int:
        """Enter an attempt, before it is checked. Returns its id."""
        with self._open() as db:
            row = (puzzle, time.time(), face, source)
            return db.execute("INSERT INTO attempts (puzzle, began, face, source) VALUES (?, ?, ?, ?)", row).lastrowid

    def finish(self, attempt: int, stage: str, reason: str, seconds: float) -> None:
        """Enter the verdict on an attempt."""
        with self._open() as db:
            row = (stage, reason, seconds, attempt)
            db.execute("UPDATE attempts SET stage = ?, reason = ?, seconds = ? WHERE id = ?", row)

    def keep(self, puzzle: str, source: str, why: str) -> None:
        """Keep a text that is about to disappear from its file, unless the history ends with it."""
        with self._open() as db:
            last = db.execute(
                "SELECT source FROM attempts WHERE puzzle = ? ORDER BY id DESC LIMIT 1", (puzzle,)
            ).fetchone()
            if last is None or last[0] != source:
                row = (puzzle, time.time(), why, source)
                db.execute("INSERT INTO attempts (puzzle, began, face, source) VALUES (?, ?, ?, ?)", row)

    def history(self, puzzle: str | None = None) -> list[Attempt]:
        """All attempts, oldest first; of one puzzle or of all."""
        number = "row_number() OVER (PARTITION BY puzzle ORDER BY id)"
        verdict = "coalesce(stage, ''), coalesce(reason, ''), coalesce(seconds, 0)"
        columns = f"id, {number}, puzzle, began, face, source, {verdict}"
        where, values = ("WHERE puzzle = ?", (puzzle,)) if puzzle else ("", ())
        return [Attempt(*row) for row in self._read(f"SELECT {columns} FROM attempts {where} ORDER BY id", values)]

    def attempt(self, puzzle: str, number: int) -> Attempt | None:
        """One attempt at a puzzle, by its number."""
        return next((each for each in self.history(puzzle) if each.number == number), None)

    def passed(self, puzzle: str) -> bool:
        """True once any attempt has passed."""
        query = "SELECT 1 FROM attempts WHERE puzzle = ? AND stage = 'passed' LIMIT 1"
        return bool(self._read(query, (puzzle,)))

    def next_hint(self, puzzle: str, count: int) -> int:
        """The index of the hint to show now, of `count`; the last one stays. Remembers that it was shown."""
        with self._open() as db:
            row = db.execute("SELECT shown FROM hints WHERE puzzle = ?", (puzzle,)).fetchone()
            shown = min(row[0] if row else 0, count - 1)
            db.execute("INSERT OR REPLACE INTO hints (puzzle, shown) VALUES (?, ?)", (puzzle, min(shown + 1, count)))
            return shown

    def predict(self, question: str, answer: dict[str, Any]) -> None:
        """Keep a prediction."""
        with self._open() as db:
            row = (question, time.time(), json.dumps(answer))
            db.execute("INSERT INTO predictions (question, made, answer) VALUES (?, ?, ?)", row)

    def prediction(self, question: str) -> dict[str, Any] | None:
        """The last prediction for a question."""
        query = "SELECT answer FROM predictions WHERE question = ? ORDER BY id DESC LIMIT 1"
        rows = self._read(query, (question,))
        return json.loads(rows[0][0]) if rows else None

    def _read(self, query: str, values: tuple) -> list[tuple]:
        """Rows; none where the file is missing, or made just now and still empty."""
        with self._usable():
            if not self.path.exists():
                return []
            where = self.path.absolute().as_uri()
            as_it_lies = f"{where}?mode=ro&immutable=1"
            if self.visited and not self.path.with_name(f"{self.path.name}-wal").exists():  # no process is writing
                return _select(as_it_lies, query, values)
            try:
                return _select(f"{where}?mode={'ro' if self.visited else 'rw'}", query, values)
            except sqlite3.OperationalError as error:
                if _code(error) not in _READ_ONLY:
                    raise
                return _select(as_it_lies, query, values)  # no process can write here, nor lock

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction that is committed at the end."""
        with self._usable():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as db:
                _log_ahead(db)
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                yield db
                db.execute("COMMIT")

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Raises BadInput with a remedy where the file can't be used."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            remedy = _REMEDIES.get(_code(error), _USUAL_REMEDY)
            raise BadInput(f"the history {self.path} can't be used ({why}): {remedy}") from None


def _select(where: str, query: str, values: tuple) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(where, timeout=_PATIENCE, uri=True)) as db:
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return db.execute(query, values).fetchall() if tables else []


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _log_ahead(db: sqlite3.Connection) -> None:
    """Turn on write-ahead logging. Where several do so at once SQLite refuses, whatever the connection's patience."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
