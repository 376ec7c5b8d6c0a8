"""Lessons in Chromium, as a reader goes through them: `make browser`, a minute or more for each; not in `make test`.

One lesson is short, and has all that is tried: `make browser ARGS='-k short'`. `ARGS='-k read'` runs no cell.
"""

from pathlib import Path

import pytest

from ..lessons.course import LESSONS
from . import walk
from .conftest import Opened

SHORT = "03_networks.ipynb"


def test_a_short_lesson_with_solutions_and_a_kernel_that_is_stopped(opened: Opened) -> None:
    page = opened(SHORT)
    places = walk.code(page)
    half = places[: len(places) // 2]
    walk.run(page, half)
    walk.stop(page, half[-1])
    walk.move(page, walk.run(page, places))
    walk.solve(page, next(place for place in places if walk.puzzle_of(page, place)))


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_can_be_read_before_it_has_run(lesson: str, opened: Opened, pictures: Path) -> None:
    walk.look(opened(lesson), pictures, [])


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_from_the_keyboard(lesson: str, opened: Opened, pictures: Path) -> None:
    page = opened(lesson)
    widgets = walk.run(page, walk.code(page))
    walk.move(page, widgets)
    walk.look(page, pictures, widgets)
