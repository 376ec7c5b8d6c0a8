"""A table of words that one can search: whole as it is stored, with a line to type in where there is a kernel."""

from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import Any

from reference.errors import BadInput

from .live import NO_CORPSES, VIEW

RUN = "run this cell to search the table"
LOOK = "text-align:left;vertical-align:top;font-size:90%"


class WordTable:
    """Rows of words. A row is found by parts of words in any of its cells; several parts must all be there.

    Args:
        head: names of columns.
        rows: as many words each.
        search: what is typed at first.

    Raises:
        BadInput: if a row has more cells than the head, or fewer.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[str]], search: str = "") -> None:
        if odd := [row for row in rows if len(row) != len(head)]:
            raise BadInput(f"each row takes {len(head)} words, one for each of {', '.join(head)}, not {len(odd[0])}")
        self.head, self.rows, self.search = tuple(head), [tuple(row) for row in rows], search
        self._widget: Any = None
        self._places: list[Any] = []  # where it is displayed

    def found(self, search: str) -> list[tuple[str, ...]]:
        """The rows that have all parts of `search` in them, in whatever case."""
        parts = search.lower().split()
        return [row for row in self.rows if all(part in " ".join(row).lower() for part in parts)]

    def html(self) -> str:
        """What is found, as a table."""
        found = self.found(self.search)
        head = "".join(f'<th style="{LOOK}">{escape(word)}</th>' for word in self.head)
        body = "".join(
            "<tr>" + "".join(f'<td style="{LOOK}">{escape(word)}</td>' for word in row) + "</tr>" for row in found
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'{NO_CORPSES}<div style="max-height:30em;overflow:auto">{table}</div>{escape(repr(self))}'

    def __repr__(self) -> str:
        of = f" with {self.search!r}" if self.search else ""
        return f"{len(self.found(self.search))} of {len(self.rows)} rows{of}"

    def type(self, search: str) -> None:
        """Search for something else, wherever the table is displayed."""
        self.search = search
        for place in self._places:
            place.update(self._bundle(), raw=True)

    @property
    def widget(self) -> Any:
        """The line to type in, made once. Raises ImportError where ipywidgets is not installed."""
        if self._widget is None:
            import ipywidgets as widgets

            self._widget = widgets.Text(value=self.search, description="search", placeholder="fsdp, stage, dies ...")
            self._widget.observe(lambda change: self.type(change.new), "value")
        return self._widget

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html()}

    def _ipython_display_(self) -> None:
        """Two outputs: the line, where there can be one, and the table."""
        from IPython.display import display

        with suppress(ImportError):
            display({VIEW: self.widget._repr_mimebundle_()[VIEW], "text/plain": RUN}, raw=True)
        self._places.append(display(self._bundle(), raw=True, display_id=True))
