"""Every verdict of a class as soon as it is there, in one SQLite file: after a kill nothing is graded twice.

A verdict is known by what it follows from: the puzzle as it is now, the text, and the seed. So a text that two learners
share is graded once, and of a folder that has grown only what is new.
"""

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from puzzles import catalog
from puzzles.grading import text
from reference.errors import BadInput

_PATIENCE = 30.0  # seconds to wait for another writer
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, facts TEXT NOT NULL, card TEXT);
CREATE TABLE IF NOT EXISTS seed (seed INTEGER NOT NULL)
"""


@dataclass(frozen=True)
class Graded:
    """A verdict as it is kept.

    Attributes:
        name: of the puzzle.
        stage, reason, passed, seconds, compared: as in `puzzles.grading.verdict`.
        table: (measure, case, target, yours, optimum) of each budget.
        lines: the verdict as a terminal shows it to its learner.
        mistake: the usual wrong solution that it is, by the puzzle's own list; "" where it is none.
        of_machine: it says more of the machine than of the text: that it was busy, or short of memory. It is not kept.
    """

    name: str
    stage: str
    reason: str
    passed: bool
    seconds: float = 0.0
    compared: int = 0
    table: tuple[tuple, ...] = ()
    lines: str = ""
    mistake: str = ""
    of_machine: bool = False


class Journal:
    """The file, by operations. Made when it is first written; each operation is one transaction.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # one writer at a time need not wait for the file

    def seed(self, new: int) -> int:
        """The seed of this class: the one that was first chosen, else `new`."""
        with self._open() as db:
            if found := db.execute("SELECT seed FROM seed").fetchone():
                return found[0]
            db.execute("INSERT INTO seed (seed) VALUES (?)", (new,))
            return new

    def keep(self, key: str, graded: Graded, card: str | None) -> None:
        """Enter a verdict, and its card where one was made."""
        with self._open() as db:
            row = (key, json.dumps(asdict(graded)), card)
            db.execute("INSERT OR REPLACE INTO verdicts (key, facts, card) VALUES (?, ?, ?)", row)

    def known(self, cards: bool) -> dict[str, Graded]:
        """All verdicts; of those alone that have cards, if these are needed."""
        with self._open() as db:
            rows = db.execute(f"SELECT key, facts FROM verdicts {'WHERE card IS NOT NULL' if cards else ''}").fetchall()
        return {key: Graded(**json.loads(facts)) for key, facts in rows}

    def card(self, key: str) -> str:
        """The card of a verdict; "" where it has none."""
        with self._open() as db:
            row = db.execute("SELECT card FROM verdicts WHERE key = ?", (key,)).fetchone()
        return (row and row[0]) or ""

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            with self._lock, contextlib.closing(connection) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"the journal {self.path} can't be used ({why}): give another with --journal") from None


def key(name: str, source: str, seed: int) -> str:
    """What a verdict is known by."""
    return hashlib.sha256(json.dumps([name, source, seed, _edition(name)]).encode()).hexdigest()


@lru_cache(maxsize=1024)
def _edition(name: str) -> str:
    """What changes when a puzzle does: its description, its stub and its answer."""
    puzzle = catalog.find(name)
    file = Path(catalog.__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
    return hashlib.sha256("\0".join([file.read_text("utf-8"), text.stub(puzzle)]).encode()).hexdigest()
