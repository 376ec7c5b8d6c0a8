"""A page of HTML for each learner, with the cards that they would have seen, and one for the class.

No page needs another file or a network."""

import html
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .exports import file_names, write
from .marks import Fared, Report
from .similar import Pair

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } th, td { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #8884 }
td.number, th.number { text-align: right } img { background: white } pre { overflow-x: auto }
"""
Cards = Callable[[str], str]


def write_pages(
    folder: Path, title: str, reports: Sequence[Report], fared: Sequence[Fared], similar: Sequence[Pair], cards: Cards
) -> None:
    """Write index.html for the class, and a page for each learner.

    Args:
        cards: the card of a verdict, by its key.

    Raises BadInput where a page can't be written.
    """
    files = {learner: f"{name}.html" for learner, name in file_names([one.learner for one in reports]).items()}
    for one in reports:
        write(folder / files[one.learner], _page(f"{title}: {one.learner}", _of_learner(one, cards)))
    write(folder / "index.html", _page(title, _of_class(reports, fared, similar, files)))


def _of_learner(one: Report, cards: Cards) -> Iterator[str]:
    late = ", after the due date" if one.late else ""
    yield f"<p>{_number(one.points)} of {_number(one.of)} points, {one.passed} of {len(one.marks)} passed{late}</p>"
    yield from _remarks(one.remarks)
    missing = [mark.graded.name for mark in one.marks if not mark.key]
    for mark in one.marks:
        if not mark.key:
            continue
        points = f"{_number(mark.points)} of {_number(mark.worth)} points"
        yield f'<h2 id="{mark.graded.name}">{mark.graded.name} <small>{points}</small></h2>'
        plain = f"<pre>{html.escape(mark.graded.lines or mark.graded.reason)}</pre>"
        yield cards(mark.key) or plain
    if missing:
        yield f"<h2>Not handed in</h2><p>{', '.join(missing)}</p>"


def _of_class(
    reports: Sequence[Report], fared: Sequence[Fared], similar: Sequence[Pair], files: dict[str, str]
) -> Iterator[str]:
    yield "<h2>Learners</h2>"
    yield from _table(
        ("learner", "points", "of", "passed", ""),
        (
            (
                f'<a href="{html.escape(files[one.learner])}">{html.escape(one.learner)}</a>',
                _number(one.points),
                _number(one.of),
                str(one.passed),
                html.escape("; ".join(["late"] * one.late + list(one.remarks))),
            )
            for one in reports
        ),
    )
    yield "<h2>Puzzles</h2>"
    yield from _table(
        ("puzzle", "passed", "wrong", "not handed in", "most frequent wrong solution"),
        (
            (each.name, *map(str, counted(each)), html.escape(f"{each.mistakes[0][0]} ({each.mistakes[0][1]})"))
            if each.mistakes
            else (each.name, *map(str, counted(each)), "")
            for each in fared
            if sum(counted(each)[:2])
        ),
    )
    yield "<h2>Similar submissions</h2>"
    yield "<p>For a human to look at: a short puzzle has few right answers, and these share more than that.</p>"
    pairs = ((html.escape(p.one), html.escape(p.other), p.name, f"{p.share:.0%}", str(p.shared)) for p in similar)
    yield from _table(("one", "other", "puzzle", "of the shorter", "fingerprints shared"), pairs)


def counted(fared: Fared) -> tuple[int, int, int]:
    """How many learners passed a puzzle, were wrong, and handed nothing in."""
    passed, unsolved = fared.stages.get("passed", 0), fared.stages.get("not solved yet", 0)
    return passed, sum(fared.stages.values()) - passed - unsolved, unsolved


def _remarks(remarks: Sequence[str]) -> Iterator[str]:
    if remarks:
        yield f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in remarks)}</ul>"


def _table(head: Sequence[str], rows) -> Iterator[str]:
    yield f"<table><thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _page(title: str, body: Iterator[str]) -> str:
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return "\n".join([f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>', "<body>"]) + "\n".join(
        [f"<h1>{html.escape(title)}</h1>", *body, "</body></html>\n"]
    )
