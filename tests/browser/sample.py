"""A sample of what `make browser` does with all lessons: one widget, moved in JupyterLab, and what can't be read.

Not in `make test` yet: it has not passed from end to end."""

from pathlib import Path

import pytest

from . import walk
from .conftest import Opened

LESSON, WIDGET = "09_pipeline_parallel.ipynb", "explore(schedule="


@pytest.mark.long
def test_a_widget_is_moved_from_the_keyboard_and_can_be_read(opened: Opened, pictures: Path) -> None:
    page = opened(LESSON)
    places = walk.code(page)
    sources = {place: page.cell(place)["source"] for place in places}
    imports = [place for place in places[:3] if "import " in sources[place]]
    (widget,) = [place for place in places if sources[place].startswith(WIDGET)]
    assert walk.run(page, [*imports, widget]) == [widget]
    moved = walk.move(page, [widget])[widget]
    assert len(moved) > 4, moved
    assert walk.look(page, pictures, "sample", [widget]) == []
