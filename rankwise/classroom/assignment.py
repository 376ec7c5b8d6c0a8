"""What an instructor asks for, in a file of TOML:

title = "Week 3: collectives"
due = 2026-11-30T23:59:00+01:00   # without an offset it is the grader's own time
seed = 5577006791947779410        # values and sizes of the checks; it stays with the instructor
late = 0.5                        # share of the points for what came after the due date; 0 by default
best = 3                          # only the best three puzzles count; all by default

[points]                          # the puzzles, and what each is worth
"collectives.ring_all_reduce" = 4
"collectives.reduce_tree" = 2

[weights]                         # of chapters; 1 by default
collectives = 1.5

[counts]                          # share of the points by how far a solution came: by default only "passed"
"over budget" = 0.5
"""

import datetime
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puzzles import catalog
from puzzles.grading.verdict import Stage
from reference.errors import BadInput

_KEYS = ("title", "due", "seed", "late", "best", "points", "weights", "counts")
_COUNTED = tuple(str(stage) for stage in Stage if stage is not Stage.UNSOLVED)


@dataclass(frozen=True)
class Assignment:
    """Puzzles with their points, and what counts. By default all puzzles of the course, one point each.

    Attributes:
        points: by puzzle, before weights.
        due: None where there is no due date.
        seed: of every check; None where the class gets one that each verdict names.
        late: share of the points for what came after the due date.
        best: how many puzzles count, those with the most points; None for all.
        weights: by chapter.
        counts: share of the points by the stage that a verdict names.
    """

    points: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(catalog.names(), 1.0))
    title: str = "All puzzles"
    due: datetime.datetime | None = None
    seed: int | None = None
    late: float = 0.0
    best: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=lambda: {str(Stage.PASSED): 1.0})

    def worth(self, name: str) -> float:
        """The points of a puzzle, with its chapter's weight."""
        return self.points[name] * self.weights.get(name.partition(".")[0], 1.0)

    @property
    def total(self) -> float:
        """All that can be had."""
        worths = sorted(map(self.worth, self.points), reverse=True)
        return sum(worths[: self.best])

    def is_late(self, received: float) -> bool:
        """True for what was written after the due date, in seconds since 1970."""
        return self.due is not None and received > self.due.timestamp()


def load(path: Path) -> Assignment:
    """The assignment in a file. Raises BadInput with the entry that is wrong."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"the assignment {path} can't be read: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the assignment {path} is no TOML: {error}") from None
    try:
        return _assignment(entries, path.stem)
    except BadInput as error:
        raise BadInput(f"the assignment {path}: {error}") from None


def _assignment(entries: dict[str, Any], title: str) -> Assignment:
    if unknown := [key for key in entries if key not in _KEYS]:
        raise BadInput(f"there is no entry {unknown[0]!r}: choose from {', '.join(_KEYS)}")
    points = {catalog.canonical(name): worth for name, worth in _numbers(entries, "points").items()}
    if not points:
        raise BadInput('it names no puzzle: [points] needs lines such as "ranks.pair" = 2')
    weights = _numbers(entries, "weights")
    if unknown := [chapter for chapter in weights if chapter not in catalog.CHAPTERS]:
        raise BadInput(f"there is no chapter {unknown[0]!r}: choose from {', '.join(catalog.CHAPTERS)}")
    counts = {str(Stage.PASSED): 1.0} | _numbers(entries, "counts", most=1.0)
    if unknown := [stage for stage in counts if stage not in _COUNTED]:
        raise BadInput(f"there is no stage {unknown[0]!r}: choose from {', '.join(_COUNTED)}")
    late = _number("late", entries.get("late", 0.0), most=1.0)
    best = _whole("best", entries.get("best"), least=1)
    seed = _whole("seed", entries.get("seed"), least=0)
    return Assignment(points, str(entries.get("title", title)), _due(entries), seed, late, best, weights, counts)


def _due(entries: dict[str, Any]) -> datetime.datetime | None:
    due = entries.get("due")
    if due is None or isinstance(due, datetime.datetime):
        return due
    raise BadInput(f"due is a date with a time, such as 2026-11-30T23:59:00+01:00, not {due!r}")


def _numbers(entries: dict[str, Any], table: str, most: float = math.inf) -> dict[str, float]:
    values = entries.get(table, {})
    if not isinstance(values, dict):
        raise BadInput(f"[{table}] is a table of numbers, not {values!r}")
    return {name: _number(f"{table}.{name}", value, most) for name, value in values.items()}


def _number(name: str, value: Any, most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value == math.inf:
        above = f" to {most:g}" if most < math.inf else " or more"
        hint = ': puzzles are written in quotes, "ranks.pair"' if isinstance(value, dict) else ""
        raise BadInput(f"{name} is a number from 0{above}, not {value!r}{hint}")
    return float(value)


def _whole(name: str, value: Any, least: int) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return value
    raise BadInput(f"{name} is a whole number from {least}, not {value!r}")
