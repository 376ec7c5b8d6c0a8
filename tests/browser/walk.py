"""What a reader does with an open lesson: run its cells, move its widgets, solve a puzzle, stop what hangs, look."""

import time
from pathlib import Path

from puzzles import catalog
from puzzles.grading import text

from . import controls
from .page import CELL, THEMES, WIDTHS, Page

LEAST = 3.0  # contrast of large and of bold words with what is behind them, WCAG 2.2: marks and verdicts are such
HANGS = "while True:\n    pass"
RANKS_HANG = """from reference.cluster import Cluster
import time
Cluster(2).run(time.sleep, 3600)"""
INTERRUPTED = "Interrupted"


def code(page: Page) -> list[int]:
    """The places of cells that run."""
    return [place for place in range(page.cells) if page.cell(place)["type"] == "code"]


def run(page: Page, places: list[int]) -> list[int]:
    """Run these cells, from the keyboard. Returns those that have widgets.

    Raises:
        AssertionError: a cell fails, shows nothing of what it has shown before, or says that torch will drop a name.
    """
    widgets = []
    for place in places:
        page.select(place)
        began = time.monotonic()
        shown = page.run(place)
        page.tell(f"cell {place} ran, {time.monotonic() - began:.1f} s")
        assert shown["errors"] == [], f"cell {place}: {shown['errors']}"
        assert not shown["folded"], f"cell {place} hides what it shows"
        assert "Warning: " not in shown["text"], f"cell {place}: {shown['text']}"
        if page.ask(f"{CELL} return cell.node.querySelector('.jp-OutputArea .jupyter-widgets') !== null", place):
            widgets.append(place)
    return widgets


def puzzle_of(page: Page, place: int) -> str:
    """The puzzle that a cell sets; "" for other cells."""
    first = page.cell(place)["source"].partition("\n")[0]
    return first.removeprefix("%%puzzle ").strip() if first.startswith("%%puzzle ") else ""


def solve(page: Page, place: int) -> None:
    """Give a puzzle's cell a wrong, a hanging and a right solution, one after another: each gets its card.

    The stub comes again after them: the right solution stays in its file.
    """
    puzzle = catalog.find(puzzle_of(page, place))
    stub = page.cell(place)["source"]
    assert "not solved yet" in page.cell(place)["text"]
    tries = {
        "✗ ": text.wrong(puzzle, puzzle.wrong[0]),
        "✗ error": text.with_body(puzzle, HANGS),
        "✓ passed": text.solution(puzzle),
        "left as it is": stub.partition("\n")[2],
    }
    for said, solution in tries.items():
        page.write(place, f"%%puzzle {puzzle.name}\n{solution}")
        shown = page.run(place)["text"]
        page.tell(f"{puzzle.name}: {said.strip()}")
        assert said in shown, f"{puzzle.name}: {said!r} is not in {shown!r}"


def stop(page: Page, after: int) -> None:
    """In a cell of its own, ranks that hang are interrupted; then the kernel is restarted, and a cell works."""
    page.select(after)
    page.press("b")
    place = page.active
    page.write(place, RANKS_HANG)
    page.select(place)
    page.press("\ue008\ue007")  # Shift and Enter
    page.wait(lambda: "*" in page.cell(place)["prompt"] and not page.idle(), 20, "the cell to begin")
    page.interrupt()
    page.wait(page.idle, 60, "the kernel to be interrupted")
    page.wait(lambda: INTERRUPTED in str(page.cell(place)["errors"]), 20, "the interrupted cell to say so")
    page.restart()
    page.write(place, "6 * 7")
    page.select(place)
    assert page.run(place)["text"].endswith("42")
    page.select(place)
    page.press("d", "d")


def move(page: Page, widgets: list[int]) -> None:
    """Move all controls of these cells. Raises AssertionError where a control changes nothing, or a cell has none."""
    moved = {place: controls.tried(page, place) for place in widgets}
    assert all(moved.values()), f"cells whose widgets can't be moved: {moved}"


def look(page: Page, folder: Path, widgets: list[int]) -> None:
    """Look at a lesson in either theme, at either width, and leave pictures of the widgets in a folder.

    Raises:
        AssertionError: text that is cut off or pale.
    """
    unread, name = [], page.lesson.partition("_")[0]
    for theme in THEMES:
        page.theme(theme)
        for width in WIDTHS:
            page.width(width)
            unread += [f"{theme}, {width} pixels: {each}" for each in page.look(LEAST)]
            page.tell(f"looked at {theme}, {width} pixels")
            for place in widgets:
                file = folder / f"{name}-{place}-{width}-{theme.split()[-1].lower()}.png"
                page.ask(f"{CELL} cell.outputArea.node.scrollIntoView({{block: 'start'}})", place)
                page.driver.save_screenshot(str(file))
    page.theme(THEMES[0])
    page.width(WIDTHS[0])
    assert not unread, "\n".join(unread)
