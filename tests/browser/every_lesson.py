"""Every lesson in Chromium, as a reader goes through it: `make browser`, some minutes for each; not in `make test`."""

from pathlib import Path

import pytest

from ..lessons.course import LESSONS
from . import walk
from .conftest import Opened


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_from_the_keyboard(lesson: str, opened: Opened, pictures: Path) -> None:
    page = opened(lesson)
    places = walk.code(page)
    half = places[: len(places) // 2]
    walk.run(page, half)
    walk.stop(page, half[-1])
    widgets = walk.run(page, places)
    moved = walk.move(page, widgets)
    assert all(moved.values()), f"cells whose widgets can't be moved: {moved}"
    if puzzles := [place for place in places if walk.puzzle_of(page, place)]:
        walk.solve(page, puzzles[0])
    assert walk.look(page, pictures, lesson.partition("_")[0], widgets) == []
