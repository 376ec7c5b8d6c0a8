"""Lessons in Chromium, as a reader goes through them: `make browser`, a minute or more for each; not in `make test`.

One lesson is short, and has all that is tried: `make browser ARGS='-k short'`.
"""

from pathlib import Path

import pytest

from ..lessons.course import LESSONS
from . import walk
from .conftest import Opened

SHORT = "03_networks.ipynb"


def test_a_short_lesson_with_solutions_and_a_kernel_that_is_stopped(opened: Opened, pictures: Path) -> None:
    page = opened(SHORT)
    places = walk.code(page)
    half = places[: len(places) // 2]
    walk.run(page, half)
    walk.stop(page, half[-1])
    walk.move_and_look(page, walk.run(page, places), pictures)
    walk.solve(page, next(place for place in places if walk.puzzle_of(page, place)))


@pytest.mark.parametrize("lesson", [each for each in LESSONS if each != SHORT])
def test_a_lesson_from_the_keyboard(lesson: str, opened: Opened, pictures: Path) -> None:
    page = opened(lesson)
    walk.move_and_look(page, walk.run(page, walk.code(page)), pictures)
