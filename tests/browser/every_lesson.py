"""Lessons in Chromium, as a reader goes through them: `make browser`, a minute or more for each; not in `make test`.

One lesson is short, and has all that is tried: `make browser ARGS='-k short'`. `ARGS='-k read'` runs no cell.
"""

from pathlib import Path

import pytest

from ..lessons.course import LESSONS
from . import walk
from .conftest import Opened

SHORT = "03_networks.ipynb"
UNREADABLE = """
arguments[0].querySelector('.jp-RenderedMarkdown').insertAdjacentHTML('beforeend', `
<div class="narrow" style="width: 40px; overflow: hidden; white-space: nowrap">too long for its box</div>
<div style="background: white; color: white">white on white</div>
<svg class="drawn" width="40" height="20" viewBox="0 0 40 20"><text x="20" y="15">out of the picture</text></svg>`);
"""


def test_a_short_lesson_with_solutions_and_a_kernel_that_is_stopped(opened: Opened) -> None:
    page = opened(SHORT)
    places = walk.code(page)
    half = places[: len(places) // 2]
    walk.run(page, half)
    walk.stop(page, half[-1])
    walk.move(page, walk.run(page, places))
    walk.solve(page, next(place for place in places if walk.puzzle_of(page, place)))


def test_what_cannot_be_read_is_found(opened: Opened) -> None:
    page = opened(SHORT)
    before = page.look(walk.LEAST)
    page.ask(UNREADABLE, page.node(0))
    assert [each for each in page.look(walk.LEAST) if each not in before] == [
        "cell 0: cut by .narrow: 'too long for its box'",
        "cell 0: pale, 1.00: 'white on white'",
        "cell 0: cut by .drawn: 'out of the picture'",
    ]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_can_be_read_before_it_has_run(lesson: str, opened: Opened, pictures: Path) -> None:
    walk.look(opened(lesson), pictures, [])


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_from_the_keyboard(lesson: str, opened: Opened, pictures: Path) -> None:
    page = opened(lesson)
    widgets = walk.run(page, walk.code(page))
    walk.move(page, widgets)
    walk.look(page, pictures, widgets)
