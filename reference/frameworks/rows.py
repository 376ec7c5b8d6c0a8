"""What runs of frameworks have shown: a row for each feature, and the table of all.

Rows are stored in `data/rows.json`, with versions and date, by `rankwise frameworks compare`.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

STORED = Path(__file__).parent / "data" / "rows.json"


@dataclass(frozen=True)
class FeatureRow:
    """What one feature of one framework has done in a run of the course."""

    framework: str
    feature: str
    ranks: int
    lines: int  # of the adapter
    versions: str = ""  # of what was installed, and of torch
    date: str = ""
    apart: float | None = None  # largest relative difference of a loss from that of one process
    bound: float = 0.0  # that it is held to
    sent: int = 0  # bytes that the rank which sends most sends in a step
    formula: int | None = None  # the same of our plan that does the same, by our formulas
    calls: dict[str, int] = field(default_factory=dict)  # of rank 0 in a step, by operation; of islands, in a round
    at_start: int = 0  # bytes sent in the first step and before it, beyond those of another step
    peak: int = 0  # bytes of tensors, of the rank that holds most, in the first two steps
    seconds: float = 0.0  # of a step, the median
    error: str = ""  # why it does not run

    @property
    def is_equal(self) -> bool:
        """Whether the curve is that of one process."""
        return self.apart is not None and self.apart <= self.bound


def load(path: Path = STORED) -> list[FeatureRow]:
    """The rows that are stored."""
    return [FeatureRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def store(rows: Iterable[FeatureRow], path: Path = STORED) -> None:
    """Write rows, in the place of those of the same framework and feature."""
    kept = {(row.framework, row.feature): row for row in [*load(path), *rows]}
    lines = ",\n".join(f" {json.dumps(asdict(row), ensure_ascii=False)}" for row in kept.values())
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


HEAD = ("framework", "feature", "n", "equal", "sent a step", "ours", "calls", "peak", "a step", "lines", "why not")


def table(rows: Iterable[FeatureRow]) -> list[tuple[str, ...]]:
    """The rows in words, the first with the names of columns."""
    return [HEAD, *(_words(row) for row in rows)]


def _words(row: FeatureRow) -> tuple[str, ...]:
    name = row.framework, row.feature, str(row.ranks)
    if row.error:
        return *name, "-", "-", "-", "-", "-", "-", str(row.lines), row.error
    equal = "-" if row.apart is None else f"{'yes' if row.is_equal else 'NO'} {row.apart:.0e}"
    ours = "-" if row.formula is None else f"{row.formula:,}"
    calls = str(sum(row.calls.values()))
    sent, peak = f"{row.sent:,}", f"{row.peak:,}" if row.peak else "-"
    time = f"{row.seconds * 1e3:.0f} ms" if row.seconds else "-"
    if not row.calls:  # nothing was heard
        sent = ours = calls = "-"
    return *name, equal, sent, ours, calls, peak, time, str(row.lines), ""
