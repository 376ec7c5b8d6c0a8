"""The course inside a notebook: `%load_ext puzzles` gives `%%puzzle <name>`, `%%ranks 4` and `%%rank 0,2`."""

from typing import Any

from reference.errors import BadInput

from . import checking, deprecations, verdict_report
from .verdict import Verdict


class VerdictReport:
    """What a cell shows: the verdict, and what became of the cell's text."""

    def __init__(self, verdict: Verdict, note: str = "") -> None:
        self.verdict, self.note = verdict, note

    def __repr__(self) -> str:
        return "\n".join(part for part in (verdict_report.text(self.verdict), self.note) if part)

    def _repr_html_(self) -> str:
        return verdict_report.html(self.verdict, self.note)


def puzzle(line: str, cell: str) -> VerdictReport | None:
    """`%%puzzle <name>`: save the cell as the puzzle's file, and check it."""
    try:
        return VerdictReport(*checking.save_and_check(line.strip(), cell))
    except BadInput as error:
        print(f"%%puzzle: {error}")
        return None


def load(shell: Any) -> None:
    """Register the magics in an IPython shell."""
    from .cells import Cells

    deprecations.hide()
    cells = Cells(shell)
    for magic in (puzzle, cells.ranks, cells.rank):
        shell.register_magic_function(magic, magic_kind="cell", magic_name=magic.__name__)
