"""Cells that run on ranks: `%%ranks 4` on warm processes, `%%rank 0,2` on some of them.

What each rank prints stands in a column of its own. Names that a cell defines are there in the next one; they are gone
where ranks had to be started again, after a deadlock for one, and then a line says so.
"""

import ast
import contextlib
import html as markup
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

from reference.cluster import Cluster, RankError, RemoteException
from reference.cluster.cells import run
from reference.cluster.cluster import MAX_RANKS
from reference.errors import BadInput

USUAL = 4  # ranks of a `%%ranks` without a number
_PRINTED = re.compile(r"\[rank (\d+)\] (.*)")
_WIDEST = 100  # characters of all columns together, in a terminal
_TEXT = "margin:0;white-space:pre-wrap;overflow-wrap:anywhere;background:none"
_GONE = "the ranks have been started again: what earlier cells have defined there is gone"


class Columns:
    """What ranks have printed, side by side."""

    def __init__(self, ranks: Sequence[int], printed: str) -> None:
        self.lines: dict[int, list[str]] = {rank: [] for rank in ranks}
        for line in printed.split("\n"):  # splitlines would also cut at a form feed, and lose what is behind it
            if (found := _PRINTED.fullmatch(line)) and int(found[1]) in self.lines:
                self.lines[int(found[1])].append(found[2])

    def __repr__(self) -> str:
        heads = [f"rank {rank}" for rank in self.lines]
        most = max(8, _WIDEST // len(heads) - 2)
        cut = [[line[i : i + most] for line in each for i in range(0, max(1, len(line)), most)] for each in self._all()]
        widths = [max(map(len, (head, *each))) for head, each in zip(heads, cut, strict=True)]
        rows = [heads, *itertools.zip_longest(*cut, fillvalue="")]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        columns = "".join(
            f'<div style="flex:1 1 12em;min-width:0"><b>rank {rank}</b>'
            f'<pre style="{_TEXT}">{markup.escape(text)}</pre></div>'
            for rank, text in zip(self.lines, map("\n".join, self._all()), strict=True)
        )
        return f'<div style="display:flex;flex-wrap:wrap;gap:1em;max-width:60em">{columns}</div>'

    def _all(self) -> list[list[str]]:
        return list(self.lines.values())


class Cells:
    """The ranks of a notebook, by their number, and the cells that run on them.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._clusters: dict[int, Cluster] = {}
        self._used: set[int] = set()  # numbers of ranks on which cells have run
        self._last = 0  # the number of ranks of the last `%%ranks`

    def ranks(self, line: str, cell: str) -> None:
        """`%%ranks 4`: run the cell on ranks 0 to 3, warm and watched; without a number on as many as the last time."""
        try:
            self._last = size = _size(line.strip(), self._last or USUAL)
            self._run(cell, tuple(range(size)))
        except BadInput as error:
            print(f"%%ranks: {error}")

    def rank(self, line: str, cell: str) -> None:
        """`%%rank 0,2`: run the cell on these ranks of the last `%%ranks`; the others do nothing."""
        try:
            self._run(cell, _chosen(line.strip(), self._last))
        except BadInput as error:
            print(f"%%rank: {error}")

    def _run(self, cell: str, ranks: tuple[int, ...]) -> None:
        """Raises what the ranks raise, after all that they have printed is shown; BadInput for what is no Python."""
        from IPython.display import display

        source = f"\n{cell}"  # the magic is line 1
        filename = self.shell.compile.cache(source, self.shell.execution_count)
        self._require_python(source, filename)
        cluster, printed = self._cluster(self._last), io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                faults = cluster.run(run, source, filename, ranks)
        except RankError:
            self._show(ranks, printed, display)
            if self._last in self._used:
                print(_GONE)
            self._used.discard(self._last)
            raise
        self._used.add(self._last)
        self._show(ranks, printed, display)
        for rank, (line, said) in enumerate(faults):
            if said:
                raise RemoteException("exception", said, rank=rank, file=filename, line=line)

    def _require_python(self, source: str, filename: str) -> None:
        """Raises a slip as any cell does, and BadInput for what a notebook alone understands; no rank hears of it."""
        try:
            compile(source, filename, "exec")
        except IndentationError:
            raise
        except SyntaxError as slip:
            with contextlib.suppress(SyntaxError):
                compile(self.shell.transform_cell(source), filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                words = "ranks run plain Python, without %magic, !command, help? and await of the notebook"
                raise BadInput(f"line {slip.lineno}: {words}") from None
            raise

    def _cluster(self, size: int) -> Cluster:
        if size not in self._clusters:
            self._clusters[size] = Cluster(size, watch=True, timeout=None, preload=("reference.cluster.cells",))
        return self._clusters[size]

    @staticmethod
    def _show(ranks: Sequence[int], printed: io.StringIO, display: Any) -> None:
        columns = Columns(ranks, printed.getvalue())
        if any(columns.lines.values()):
            display(columns)


def _size(said: str, usual: int) -> int:
    """A number of ranks. Raises BadInput."""
    if not said:
        return usual
    if not said.isdecimal() or not 1 <= int(said) <= MAX_RANKS:
        raise BadInput(f"give a number of ranks from 1 to {MAX_RANKS}, as in %%ranks 4, not {said!r}")
    return int(said)


def _chosen(said: str, size: int) -> tuple[int, ...]:
    """Some ranks, as "0,2" or "1-3". Raises BadInput."""
    if not size:
        raise BadInput("no ranks are up: begin with a cell %%ranks 4")
    chosen: set[int] = set()
    for part in said.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (size, size)
        if not first <= last < size:
            example = f"%%rank 0,{size - 1} or %%rank 0-{size - 1}" if size > 1 else "%%rank 0"
            raise BadInput(f"give ranks from 0 to {size - 1}, as in {example}, not {said!r}")
        chosen |= set(range(first, last + 1))
    return tuple(sorted(chosen))
